"""What tokens cost: pure arithmetic on whole picodollars."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Used:
    """Tokens to be paid for. ``cached_tokens`` are those of the prompt that were not computed; ``completion_tokens`` are of all answers."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    @property
    def nothing(self) -> bool:
        """Whether not even a prompt was read."""
        return self.prompt_tokens == 0 and self.completion_tokens == 0


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in picodollars: of a request, and of one token each of the prompt, of the part of the prompt that was cached, and of
    the answers. None is negative, and a cached token is never dearer than another."""

    prompt: int
    cached: int
    completion: int
    request: int

    @property
    def free(self) -> bool:
        """Whether nothing costs anything."""
        return self == Prices(0, 0, 0, 0)

    def cost(self, used: Used) -> int:
        """Picodollars for what was used; nothing for nothing."""
        if used.nothing:
            return 0
        computed = used.prompt_tokens - used.cached_tokens
        return (
            self.request
            + computed * self.prompt
            + used.cached_tokens * self.cached
            + used.completion_tokens * self.completion
        )

    def most(self, prompt_tokens: int, answer_tokens: int) -> int:
        """The most that a request can cost which has so long a prompt and so many tokens of answers."""
        return self.cost(Used(prompt_tokens, 0, answer_tokens))

    def affordable_tokens(self, available: int, prompt_tokens: int) -> int | None:
        """Tokens of answers that can be paid after the prompt; negative when not even that can, None when they cost nothing."""
        left = available - self.most(prompt_tokens, 0)
        if left < 0:
            return -1
        return left // self.completion if self.completion else None

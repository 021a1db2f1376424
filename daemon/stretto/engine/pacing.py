"""How many prompt tokens a step may hold, so that running answers do not stall."""

from __future__ import annotations

MIN_PREFILL_TOKENS = 16
"""A step always takes this many, so that prompts get on however slow the machine is; fewer are not worth measuring."""

IDLE_STALL_TARGETS = 4
"""With no answer to stall, a step is still bounded in time: a new request, or a cancel, waits for its end."""

_SLOWER = 0.7
_FASTER = 0.3


class Pace:
    """Measures steps and sizes prefill in time.

    A step is taken to cost what a step of decodes alone costs, and a time per prompt token on top. Both are exponentially
    weighted moving averages; the one per token follows a slowdown faster than a speed-up, since attention over a growing prompt
    slows it steadily, and too long a step is what must not happen.
    """

    def __init__(self, *, stall_target_s: float, chunk_tokens: int) -> None:
        self._stall_target_s = stall_target_s
        self._chunk_tokens = chunk_tokens
        self._decode_step_s = 0.0
        self._decoded = False
        self.prefill_tokens_per_s = 0.0
        """0 until measured."""
        self.decode_tokens_per_s = 0.0
        """Of all sequences together, in steps without prefill; 0 until measured."""

    def prefill_budget_tokens(self, *, decoding: bool) -> int:
        """Prompt tokens for the next step; while no answer is being generated it may take ``IDLE_STALL_TARGETS`` times as long."""
        if not self.prefill_tokens_per_s:
            return self._chunk_tokens
        left_s = self._stall_target_s * IDLE_STALL_TARGETS
        if decoding:
            # Until a step with answers in it was measured, half of the target is left for them.
            decodes_s = self._decode_step_s if self._decoded else self._stall_target_s / 2
            left_s = max(0.0, self._stall_target_s - decodes_s)
        tokens = int(self.prefill_tokens_per_s * left_s + 1e-6)
        return min(self._chunk_tokens, max(MIN_PREFILL_TOKENS, tokens))

    def observe(
        self,
        *,
        step_s: float,
        prefill_tokens: int,
        decode_rows: int,
        decode_tokens: int | None = None,
        drafted: bool = False,
    ) -> None:
        """Learn from a step that took ``step_s``.

        ``decode_rows`` answers got on in it, by ``decode_tokens`` together (a token each, if not given). What a step with drafts took
        says nothing of one without: there are none beside prompts.
        """
        if step_s <= 0:
            return
        self._decoded = self._decoded or decode_rows > 0
        if prefill_tokens == 0:
            if decode_rows:
                if not drafted:
                    self._decode_step_s = _average(self._decode_step_s, step_s, _FASTER)
                tokens = decode_rows if decode_tokens is None else decode_tokens
                self.decode_tokens_per_s = _average(self.decode_tokens_per_s, tokens / step_s, _FASTER)
            return
        if prefill_tokens < MIN_PREFILL_TOKENS and self.prefill_tokens_per_s:
            return
        # A mixed step cannot be all decode, however fast prefill is: count a tenth of it at least.
        own_s = max(step_s - (self._decode_step_s if decode_rows else 0.0), step_s / 10)
        rate = prefill_tokens / own_s
        weight = _SLOWER if rate < self.prefill_tokens_per_s else _FASTER
        self.prefill_tokens_per_s = _average(self.prefill_tokens_per_s, rate, weight)


def _average(old: float, new: float, weight: float) -> float:
    return old + (new - old) * weight if old else new

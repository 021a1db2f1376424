"""The last word on whether two questions are the same."""

from __future__ import annotations

from typing import Protocol


class JudgeFailed(Exception):
    """A judge has no opinion; that counts as a no."""


class Judge(Protocol):
    """Says how likely it is that two questions ask the same thing.

    What judges is behind this face: the served model, or a model made for decisions.
    """

    @property
    def name(self) -> str:
        """For the status."""
        ...

    async def same(self, request_id: str, cached: str, asked: str) -> float:
        """The probability that ``asked`` asks the same as ``cached``, so that the answer to ``cached`` answers it.

        Args:
            request_id: of the request that is to be answered; unique among what is judged at a time.

        Raises:
            JudgeFailed: it cannot tell.
        """
        ...

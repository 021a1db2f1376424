"""What the sampler asks of a constraint on the answer."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt


class TokenConstraint(Protocol):
    """Which tokens may come next, for one sequence alone; it follows the tokens that were drawn.

    Used by the engine thread only. It may allow a token of ``SequenceRequest.end_token_ids`` only where the answer may end.
    """

    def allowed(self) -> npt.NDArray[np.intp] | None:
        """Ids of the tokens that may come next: ascending, at least one; None where every token may.

        Raises:
            EngineError: no token can follow, or to find out would take too long. The sequence ends with it.
        """
        ...

    def accept(self, token_id: int) -> None:
        """Take note of a token that was drawn; it is one of those that were allowed.

        Raises:
            EngineError: see ``allowed``.
        """
        ...

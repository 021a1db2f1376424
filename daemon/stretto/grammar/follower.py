"""One answer's place in its grammar."""

from __future__ import annotations

from collections.abc import Sequence

import llguidance
import numpy as np
import numpy.typing as npt

from stretto.errors import EngineError

IdArray = npt.NDArray[np.intp]


class GrammarFollower:
    """Says which tokens may come next, and follows the tokens that were drawn. An engine's ``TokenConstraint``.

    Args:
        matcher: at the beginning of the answer, and nobody else's.
        vocab_size: tokens of the model's vocabulary that the grammar knows; others are never allowed.
        end_ids: tokens that end the answer; allowed only where the grammar may end.
        barred_ids: control tokens that are not end tokens: never allowed.
    """

    def __init__(
        self, matcher: llguidance.LLMatcher, vocab_size: int, end_ids: IdArray, barred_ids: IdArray
    ) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._end_ids = end_ids
        self._barred_ids = barred_ids
        self._ended = False

    def allowed(self) -> IdArray:
        """Ids of the tokens that may come next, ascending.

        Raises:
            EngineError: ``grammar_stuck`` when the model has no token that could follow; ``grammar_too_complex`` when the grammar
                needs more work at this place than its limits allow.
        """
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        flags = np.unpackbits(packed, count=self._vocab_size, bitorder="little")
        flags[self._barred_ids] = 0
        if not self._matcher.is_accepting():
            flags[self._end_ids] = 0
        ids: IdArray = np.flatnonzero(flags)
        if not ids.size:
            raise EngineError(
                "The answer came to a place where its grammar allows nothing that this model has a token for.",
                code="grammar_stuck",
                remedy="Loosen the schema or grammar of the request.",
            )
        return ids

    def accept(self, token_id: int) -> None:
        """Go on by a token that was allowed.

        Raises:
            EngineError: see ``allowed``.
        """
        if self._ended:
            raise RuntimeError("an answer does not go on after its end token")
        if token_id in self._end_ids:
            self._ended = True
            return
        self._matcher.consume_token(token_id)
        self._check()

    def begin(self, token_ids: Sequence[int]) -> bool:
        """Go on by tokens that somebody else chose, at the beginning; False, and of no use any more, when the grammar does not allow them.

        ``allowed`` may leave out tokens that spell forced text in an unusual way; here any spelling will do.
        """
        return int(self._matcher.try_consume_tokens(list(token_ids))) == len(token_ids)

    def _check(self) -> None:
        if not self._matcher.is_error():
            return
        error = self._matcher.get_error()
        if error.startswith("NoExtension"):
            raise EngineError(
                "The answer came to a place where nothing can follow that its grammar allows.",
                code="grammar_stuck",
                remedy="Loosen the schema or grammar of the request.",
            )
        raise EngineError(
            f"The grammar of the answer needs more work at this place than its limits allow ({error.splitlines()[0][:120]}).",
            code="grammar_too_complex",
            remedy="Simplify the schema or grammar of the request: fewer optional properties and alternatives, shorter patterns.",
        )

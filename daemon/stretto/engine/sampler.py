"""Choosing the next token: constraint, bias, penalties, temperature, top-k, top-p, min-p, draw. Numpy on float32 logits.

Every row is worked on by itself, with the same operations whatever the batch, and a sequence draws from a generator of its
own, one number a token. So a seeded sequence draws the same in any company, as long as its logits are the same.
"""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stretto.backends.base import Float32Array, Int32Array
from stretto.conversation.messages import SamplingParams
from stretto.engine.constraint import TokenConstraint
from stretto.engine.sequence import Token
from stretto.errors import EngineError

IdArray = npt.NDArray[np.intp]

_log = logging.getLogger(__name__)

_SUM_WIDTH = 1024
_TINY = float(np.finfo(np.float32).tiny)
_CANDIDATES = 64
_BINS = 512
_BINS_PER_UNIT = 16


class SamplerState:
    """One sequence's parameters, counted tokens and random numbers.

    The generator is Philox (Salmon et al. 2011), keyed by the seed modulo 2**128, or by the system's entropy without one.
    """

    __slots__ = (
        "_bias",
        "_bias_ids",
        "_constraint",
        "_counts",
        "_random",
        "_seen",
        "_unchanged",
        "constrained",
        "failure",
        "params",
        "plain",
    )

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Int32Array,
        vocab_size: int,
        constraint: TokenConstraint | None = None,
    ) -> None:
        self.params = params
        self._constraint = constraint
        self.failure: EngineError | None = None
        """Why the constraint gave no token."""
        self._random: np.random.Generator | None = None
        if params.temperature > 0:
            key = None if params.seed is None else params.seed % (1 << 128)
            self._random = np.random.Generator(np.random.Philox(key=key))
        self._bias_ids = np.fromiter(params.logit_bias.keys(), dtype=np.intp)
        self._bias = np.fromiter(params.logit_bias.values(), dtype=np.float32)
        self._seen: npt.NDArray[np.bool_] | None = None
        if params.repetition_penalty != 1.0:
            self._seen = np.zeros(vocab_size, dtype=np.bool_)
            self._seen[prompt_ids] = True
        self._counts: Int32Array | None = None
        if params.presence_penalty or params.frequency_penalty:
            self._counts = np.zeros(vocab_size, dtype=np.int32)
        self._unchanged = not self._bias_ids.size and self._seen is None and self._counts is None
        self.constrained = constraint is not None
        self.plain = self._unchanged and constraint is None
        """Whether the logits are used as they are, all of them."""

    def accept(self, token_id: int) -> None:
        """Count a token of the answer."""
        if self._constraint is not None:
            self._constraint.accept(token_id)
        if self._seen is not None:
            self._seen[token_id] = True
        if self._counts is not None:
            self._counts[token_id] += 1

    def adjust(self, row: Float32Array) -> Float32Array:
        """Biased and penalised logits: a new array, or ``row`` itself when there is nothing to do."""
        if self._unchanged:
            return row
        adjusted: Float32Array = row.copy()
        adjusted[self._bias_ids] += self._bias
        if self._seen is not None:
            ids = np.flatnonzero(self._seen)
            penalty = np.float32(self.params.repetition_penalty)
            values = adjusted[ids]
            adjusted[ids] = np.where(values > 0, values / penalty, values * penalty)
        if self._counts is not None:
            ids = np.flatnonzero(self._counts)
            per_count = np.float32(self.params.frequency_penalty) * self._counts[ids].astype(np.float32)
            adjusted[ids] -= per_count + np.float32(self.params.presence_penalty)
        return adjusted

    def choose(self, row: Float32Array) -> int | None:
        """The next token for the model's logits ``row`` [vocabulary], or None when penalties made them infinite.

        A constraint comes first: what it does not allow has no part in anything that follows.

        Raises:
            EngineError: see ``TokenConstraint.allowed``.
        """
        allowed = None if self._constraint is None else self._constraint.allowed()
        with np.errstate(over="ignore", invalid="ignore"):
            adjusted = self.adjust(row)
            if allowed is not None:
                adjusted = adjusted[allowed]
            index = self._pick(adjusted)
        return index if index is None or allowed is None else int(allowed[index])

    def _pick(self, adjusted: Float32Array) -> int | None:
        """The index of one of these logits; None when they are not finite."""
        best = int(adjusted.argmax())
        peak = adjusted[best]
        if not np.isfinite(peak):
            return None
        if self._random is None:
            return best
        scaled = (adjusted - peak) / np.float32(max(self.params.temperature, _TINY))
        uniform = float(self._random.random())
        ids = kept_ids(scaled, self.params)
        if ids is None:
            return draw_all(np.exp(scaled), uniform)
        cumulative = np.cumsum(np.exp(scaled[ids].astype(np.float64)))
        index = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
        return int(ids[min(index, len(ids) - 1)])


def sample(
    logits: Float32Array, states: Sequence[SamplerState], logprobs: Sequence[int | None]
) -> list[Token | None]:
    """Choose a token for each row and count it.

    Log-probabilities are the log-softmax of the model's own logits, before bias, penalties and temperature. A constraint that fails,
    in whatever way, is the failure of its own row alone.

    Args:
        logits: float32 [rows, vocabulary]; not changed.
        states: one a row.
        logprobs: for each row, how many alternatives to report, or None for no log-probabilities.

    Returns:
        A token for each row, or None for a row that holds NaN or infinity, and where ``SamplerState.failure`` says why.
    """
    finite = finite_rows(logits)
    tokens: list[Token | None] = [None] * len(states)
    best: IdArray | None = None
    if all(state.plain and state.params.temperature == 0 for state in states):
        best = logits.argmax(axis=1)
    for index, state in enumerate(states):
        if not finite[index]:
            continue
        row = logits[index]
        try:
            chosen = state.choose(row) if best is None else int(best[index])
            if chosen is None:
                continue
            state.accept(chosen)
        except EngineError as failure:
            state.failure = failure
            continue
        except BaseException as fault:
            if not state.constrained or not _is_fault(fault):
                raise
            state.failure = _constraint_failed(fault)
            continue
        wanted = logprobs[index]
        tokens[index] = Token(chosen) if wanted is None else _with_logprobs(row, chosen, wanted)
    return tokens


def _is_fault(fault: BaseException) -> bool:
    # A panic in Rust comes as an exception that is no Exception, of a class that cannot be imported.
    return isinstance(fault, Exception) or type(fault).__name__ == "PanicException"


def _constraint_failed(fault: BaseException) -> EngineError:
    # Where it was raised and nothing else: the exception's own words may have the answer in them.
    place = "".join(traceback.format_tb(fault.__traceback__)[-3:])
    _log.error("the constraint of a sequence raised %s:\n%s", type(fault).__name__, place)
    return EngineError(
        "What this answer is held to failed unexpectedly; the daemon's log has the place.",
        code="constraint_failed",
        remedy="Loosen the schema or grammar of the request, and report the log's lines.",
    )


def score(logits: Float32Array, token_ids: Int32Array, alternatives: int) -> tuple[Token, ...] | None:
    """Log-probabilities of tokens that stand already, by the model's own logits as ``sample`` has them.

    Args:
        logits: float32 [rows, vocabulary]; row i is what the model expected where ``token_ids[i]`` stands.
        token_ids: int32 [rows].
        alternatives: how many to report for each.

    Returns:
        The tokens, or None when a row holds NaN or infinity.
    """
    if not finite_rows(logits).all():
        return None
    return tuple(
        _with_logprobs(row, int(token_id), alternatives)
        for row, token_id in zip(logits, token_ids, strict=True)
    )


def kept_ids(scaled: Float32Array, params: SamplingParams) -> IdArray | None:
    """Token ids that top-k, then top-p, then min-p keep, in an order fixed by ``scaled``, or None when all are kept.

    Top-p counts probability among those that top-k kept. ``scaled`` are logits after temperature, the largest being 0.
    """
    ids: IdArray | None = None
    if 0 < params.top_k < scaled.size:
        ids = largest(scaled, params.top_k)
    if params.top_p < 1.0:
        ids = _nucleus(scaled, ids, params.top_p)
    if params.min_p > 0.0:
        least = math.log(params.min_p)
        ids = np.flatnonzero(scaled >= least) if ids is None else ids[scaled[ids] >= least]
    return ids


def largest(row: Float32Array, count: int) -> IdArray:
    """Ids of the ``count`` largest values, largest first; the lower id wins a tie.

    Without sorting or partitioning the row when it is much longer than ``count``: the row is cut into more than ``count``
    strips, and the count-th largest of their maxima is a value that at least ``count`` reach.
    """
    size = row.size
    if count >= size:
        ids = np.arange(size)
    else:
        width = size // (count * 4)
        if width >= 8:
            strips = size // width
            maxima = row[: strips * width].reshape(strips, width).max(axis=1)
            least = np.partition(maxima, strips - count)[strips - count]
        else:
            least = np.partition(row, size - count)[size - count]
        ids = np.flatnonzero(row >= least)
    order: IdArray = ids[np.argsort(-row[ids], kind="stable")[:count]]
    return order


def draw_all(weights: Float32Array, uniform: float) -> int:
    """The id at ``uniform`` of the whole cumulative weight; sums of strips first, so that only one strip is summed up singly."""
    if weights.size <= 2 * _SUM_WIDTH:
        totals = np.cumsum(weights, dtype=np.float64)
        index = int(np.searchsorted(totals, uniform * totals[-1], side="right"))
        return min(index, int(np.flatnonzero(weights)[-1]))
    whole = weights.size // _SUM_WIDTH * _SUM_WIDTH
    sums = weights[:whole].reshape(-1, _SUM_WIDTH).sum(axis=1, dtype=np.float64)
    cumulative = np.cumsum(np.append(sums, weights[whole:].sum(dtype=np.float64)))
    target = uniform * cumulative[-1]
    strip = int(np.searchsorted(cumulative, target, side="right"))
    strip = min(strip, int(np.flatnonzero(np.diff(cumulative, prepend=0.0))[-1]))
    before = cumulative[strip - 1] if strip else 0.0
    inside = weights[strip * _SUM_WIDTH : (strip + 1) * _SUM_WIDTH]
    index = int(np.searchsorted(np.cumsum(inside, dtype=np.float64), target - before, side="right"))
    if index >= inside.size:  # the two sums round differently at the very end of a strip
        index = int(np.flatnonzero(inside)[-1])
    return strip * _SUM_WIDTH + index


def finite_rows(logits: Float32Array) -> npt.NDArray[np.bool_]:
    """Which rows hold neither NaN nor infinity."""
    # A sum is finite only if all its terms are; huge finite terms can overflow it, so a bad sum is looked at closely.
    with np.errstate(over="ignore", invalid="ignore"):
        finite: npt.NDArray[np.bool_] = np.isfinite(logits.sum(axis=1))
    for index in np.flatnonzero(~finite):
        finite[index] = np.isfinite(logits[index]).all()
    return finite


def _nucleus(scaled: Float32Array, ids: IdArray | None, top_p: float) -> IdArray:
    """The fewest ids, taken from the most likely on, that reach the share ``top_p`` of the probability of ``ids`` (all, if None).

    Over the whole vocabulary a few candidates mostly do. Where they do not, the vocabulary is counted into bins by logit, whole
    bins are taken in whatever order, and only the bin that reaches the share is sorted.
    """
    if ids is None:
        weights = np.exp(scaled)
        wanted = top_p * float(weights.sum(dtype=np.float64))
        ids = largest(scaled, _CANDIDATES)
        cumulative = np.cumsum(weights[ids], dtype=np.float64)
        if ids.size < scaled.size and cumulative[-1] < wanted:
            bins = np.minimum(scaled * np.float32(-_BINS_PER_UNIT), np.float32(_BINS - 1)).astype(np.intp)
            mass = np.cumsum(np.bincount(bins, weights=weights, minlength=_BINS))
            reached = min(int(np.searchsorted(mass, wanted, side="left")), _BINS - 1)
            whole = np.flatnonzero(bins < reached)
            last = np.flatnonzero(bins == reached)
            last = last[np.argsort(-scaled[last], kind="stable")]
            ids = np.concatenate([whole, last])
            cumulative = np.cumsum(weights[ids], dtype=np.float64)
            cumulative[: whole.size] = 0.0
    else:
        cumulative = np.cumsum(np.exp(scaled[ids].astype(np.float64)))
        wanted = top_p * float(cumulative[-1])
    return ids[: int(np.searchsorted(cumulative, wanted, side="left")) + 1]


def _with_logprobs(row: Float32Array, chosen: int, alternatives: int) -> Token:
    peak = float(row.max())
    log_total = peak + math.log(float(np.exp(row - np.float32(peak)).sum(dtype=np.float64)))
    top: tuple[tuple[int, float], ...] = ()
    if alternatives:
        top = tuple((int(index), float(row[index]) - log_total) for index in largest(row, alternatives))
    return Token(chosen, float(row[chosen]) - log_total, top)

"""Running works against servers in turns, so that whatever else the machine does meets them alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from stretto.bench.prompts import Prompts
from stretto.bench.wire import BenchError, Wire
from stretto.bench.works import Better, Figure, Trial, Work


@dataclass(frozen=True, slots=True)
class Target:
    """A server that is measured."""

    name: str
    wire: Wire


@dataclass(slots=True)
class Row:
    """One figure of one work: its values by target, one a round, in the order of the rounds."""

    work: str
    figure: str
    unit: str
    better: Better
    values: dict[str, list[float]] = field(default_factory=dict)

    def median(self, target: str) -> float | None:
        """The median of a target's values, or None if it has none."""
        values = self.values.get(target)
        return median(values) if values else None

    def ratio(self, target: str, other: str) -> float | None:
        """How many times better ``target`` is than ``other``, by their medians; above 1 is better whichever way the figure goes."""
        ours, theirs = self.median(target), self.median(other)
        if not ours or not theirs:
            return None
        return ours / theirs if self.better == "higher" else theirs / ours


@dataclass(slots=True)
class Results:
    """Everything that was measured. ``notes`` say what makes figures less comparable than they look, ``failures`` which works
    were given up, and why."""

    rows: list[Row] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def row(self, work: str, figure: Figure) -> Row:
        """The row of a figure; made when it is not there yet."""
        for row in self.rows:
            if (row.work, row.figure) == (work, figure.name):
                return row
        self.rows.append(Row(work, figure.name, figure.unit, figure.better))
        return self.rows[-1]

    def note(self, text: str) -> None:
        """Add a note once."""
        if text not in self.notes:
            self.notes.append(text)


async def calibrate(wire: Wire) -> Prompts:
    """Prompts sized for a server's tokenizer and template.

    Raises:
        BenchError: see ``Wire.chat``.
    """
    counts = [
        (await wire.chat([{"role": "user", "content": text}], max_tokens=1)).prompt_tokens
        for text in Prompts.trial()
    ]
    return Prompts.calibrated(*counts)


async def run_rounds(
    targets: Sequence[Target],
    works: Sequence[Work],
    *,
    rounds: int,
    warm_ups: int = 1,
    seed: str,
    tell: Callable[[str], None] = lambda text: None,
) -> Results:
    """Do each work ``rounds`` times with each target, after ``warm_ups`` that are not counted.

    In a round each work goes to one target after the other, and which comes first changes with the round. Every target gets the
    same prompts, and no prompt is used twice but by the other targets. A work in which a server fails, or does not give the tokens
    that it was asked for, is given up.

    Raises:
        BenchError: the first server cannot even be calibrated for.
    """
    results = Results()
    prompts = await calibrate(targets[0].wire)
    left = list(works)
    for number in range(1 - warm_ups, rounds + 1):
        order = targets if number % 2 else targets[::-1]
        for work in tuple(left):
            trials: dict[str, Trial] = {}
            failure: BaseException | None = None
            try:
                for target in order:
                    tell(f"round {number}/{rounds}: {work.name} on {target.name}")
                    trials[target.name] = await work.run(target.wire, prompts, f"{seed}/{work.name}/{number}")
            except* BenchError as group:
                failure = _first(group)
            if failure is not None:
                # What the other works measured is not lost for it.
                left.remove(work)
                results.failures.append(f"{work.name}: {failure}")
                continue
            if number > 0:
                _record(results, work, targets, trials)
    return results


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _record(results: Results, work: Work, targets: Sequence[Target], trials: dict[str, Trial]) -> None:
    for figure in work.figures:
        row = results.row(work.name, figure)
        for target in targets:
            row.values.setdefault(target.name, []).append(trials[target.name].values[figure.name])
    first = trials[targets[0].name]
    for target in targets[1:]:
        other = trials[target.name]
        if not work.same_prompts:
            continue
        if other.prompt_tokens != first.prompt_tokens:
            results.note(
                f"{work.name}: the same text is {sum(first.prompt_tokens)} tokens to {targets[0].name} and "
                f"{sum(other.prompt_tokens)} to {target.name}."
            )
        if other.completion_tokens != first.completion_tokens:
            results.note(
                f"{work.name}: {targets[0].name} gave {sum(first.completion_tokens)} tokens and {target.name} "
                f"{sum(other.completion_tokens)}."
            )

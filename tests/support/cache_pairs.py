"""The labelled pairs of questions in ``benchmarks/paraphrases.tsv``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PAIRS_PATH = Path(__file__).parents[2] / "benchmarks" / "paraphrases.tsv"
KINDS = ("paraphrase", "opposite", "number", "name", "negation", "related", "unrelated")


@dataclass(frozen=True)
class Pair:
    """Two questions; ``same`` when the answer to the first does for the second."""

    part: str
    kind: str
    first: str
    second: str

    @property
    def same(self) -> bool:
        return self.kind == "paraphrase"


def load_pairs() -> list[Pair]:
    lines = PAIRS_PATH.read_text(encoding="utf-8").splitlines()
    return [Pair(*line.split("\t")) for line in lines if not line.startswith("#")]

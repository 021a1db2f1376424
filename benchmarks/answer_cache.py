"""How well the answer cache tells questions that are the same from those that are not.

Reads the labelled pairs of ``paraphrases.tsv``, computes the table of ``docs/cache.md`` and prints it: for each threshold of the embedding, alone, with
the gate, and with a judge, how many pairs would be hits, how many of them rightly so (precision), how many of the paraphrases are among
them (recall), and how often the judge is asked for each pair.

    python benchmarks/answer_cache.py                                  # embedding and gate
    python benchmarks/answer_cache.py --judge smollm2 --wrong          # with a judge; lists the wrong hits
    python benchmarks/answer_cache.py --part held                      # one part of the set
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from stretto.cache.gate import compare
from stretto.conversation import AnswerFormat, ChatTemplate
from stretto.embedding import EmbeddingModel
from stretto.engine import EngineClient, EngineConfig
from stretto.pipeline.served_judge import ServedJudge
from stretto.weights import load_tokenizer, open_model
from stretto.weights.library import ModelLibrary, default_models_dir

PAIRS = Path(__file__).with_name("paraphrases.tsv")
THRESHOLDS = (0.95, 0.90, 0.85, 0.80, 0.75, 0.70)
JUDGE_THRESHOLDS = (0.9, 0.5)


@dataclass
class Pair:
    """Two questions and what is known of them; ``judged`` is the judge's probability that they are the same."""

    part: str
    kind: str
    first: str
    second: str
    similarity: float = 0.0
    gate: str | None = None
    judged: float = 0.0

    @property
    def same(self) -> bool:
        return self.kind == "paraphrase"


def load(part: str | None) -> list[Pair]:
    lines = PAIRS.read_text(encoding="utf-8").splitlines()
    pairs = [Pair(*line.split("\t")) for line in lines if not line.startswith("#")]
    return [pair for pair in pairs if part in (None, pair.part)]


def measure(pairs: Sequence[Pair], embedder: str) -> None:
    """Fill in similarity and gate."""
    model = EmbeddingModel(ModelLibrary(default_models_dir()).require(embedder).path)
    texts = sorted({text for pair in pairs for text in (pair.first, pair.second)})
    ids = model.encode(texts)
    vectors = {}
    for start in range(0, len(texts), 64):
        batch = texts[start : start + 64]
        vectors.update(zip(batch, model.forward(ids[start : start + 64]), strict=True))
    for pair in pairs:
        pair.similarity = float(vectors[pair.first] @ vectors[pair.second])
        refusal = compare(pair.first, pair.second)
        pair.gate = None if refusal is None else refusal.reason


async def judge(pairs: Sequence[Pair], name: str) -> None:
    """Fill in the judge's probability, for pairs that any threshold would ask about."""
    from stretto.backends.native import NativeBackend

    source = open_model(ModelLibrary(default_models_dir()).require(name).path)
    tokenizer = load_tokenizer(source)
    assert source.chat_template is not None
    template = ChatTemplate(
        source.chat_template, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token
    )
    config = EngineConfig(max_batch=1, max_context_tokens=1024, kv_cache_bytes=256_000_000)
    async with EngineClient(NativeBackend(source), config) as engine:
        await engine.load()
        form = AnswerFormat.of(template, tokenizer)
        asked = ServedJudge(name, engine, tokenizer, template, form)
        for pair in pairs:
            if pair.similarity >= min(THRESHOLDS):
                pair.judged = await asked.same("bench", pair.first, pair.second)


def row(
    name: str, pairs: Sequence[Pair], hit: Callable[[Pair], bool], asks: Callable[[Pair], bool]
) -> dict[str, object]:
    hits = [pair for pair in pairs if hit(pair)]
    right = sum(pair.same for pair in hits)
    return {
        "decided by": name,
        "hits": len(hits),
        "precision": round(right / len(hits), 3) if hits else None,
        "recall": round(right / sum(pair.same for pair in pairs), 3),
        "judge calls": round(sum(map(asks, pairs)) / len(pairs), 2),
        "wrong": sorted({pair.kind for pair in hits if not pair.same}),
    }


def table(pairs: Sequence[Pair], judged: bool) -> list[dict[str, object]]:
    rows = []
    for threshold in THRESHOLDS:

        def near(pair: Pair, threshold: float = threshold) -> bool:
            return pair.similarity >= threshold

        def passes(pair: Pair, threshold: float = threshold) -> bool:
            return pair.similarity >= threshold and pair.gate is None

        def never(pair: Pair) -> bool:
            return False

        found = [row("embedding", pairs, near, never), row("embedding, gate", pairs, passes, never)]
        for least in JUDGE_THRESHOLDS if judged else ():

            def believed(pair: Pair, threshold: float = threshold, least: float = least) -> bool:
                return pair.similarity >= threshold and pair.judged >= least

            def all_three(pair: Pair, threshold: float = threshold, least: float = least) -> bool:
                return pair.similarity >= threshold and pair.gate is None and pair.judged >= least

            found.append(row(f"embedding, judge {least}", pairs, believed, near))
            found.append(row(f"embedding, gate, judge {least}", pairs, all_three, passes))
        rows += [{"threshold": threshold, **line} for line in found]
    return rows


def show(rows: Sequence[dict[str, object]]) -> None:
    names = list(rows[0])
    print("| " + " | ".join(names) + " |")
    print("|" + "---|" * len(names))
    for line in rows:
        cells = [
            ", ".join(map(str, cell)) if isinstance(cell, list) else "-" if cell is None else str(cell)
            for cell in line.values()
        ]
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--embedder", default="minilm", help="an installed embedding model")
    parser.add_argument("--judge", help="an installed model that judges, or a path to one")
    parser.add_argument("--part", choices=("tune", "held", "check"), help="one part of the set only")
    parser.add_argument("--wrong", action="store_true", help="list the pairs that are hits and should not be")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    options = parser.parse_args()
    pairs = load(options.part)
    measure(pairs, options.embedder)
    if options.judge:
        trio.run(judge, pairs, options.judge)
    rows = table(pairs, bool(options.judge))
    print(json.dumps(rows, indent=2)) if options.json else show(rows)
    if options.wrong:
        for pair in pairs:
            if not pair.same and pair.gate is None and pair.similarity >= min(THRESHOLDS):
                print(f"{pair.similarity:.3f} {pair.kind}: {pair.first} | {pair.second}")


if __name__ == "__main__":
    main()

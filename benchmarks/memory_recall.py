"""What recall finds, by words and by words and meaning: python benchmarks/memory_recall.py

Remembers the first question of every labelled pair in paraphrases.tsv and all that is said in other_words.tsv, in one session. Then asks the
second question of each paraphrase, and what is asked in other words: is the first one recalled, and as the most relevant? Needs the embedding model (stretto pull minilm). Prints JSON.
"""

from __future__ import annotations

import csv
import json
import statistics
import tempfile
import time
from pathlib import Path

import trio

from stretto.embedding import Embedder, EmbeddingModel
from stretto.kept import meaning_of
from stretto.memory import SCHEMA, SessionMemory
from stretto.settings import load_settings
from stretto.store import Store
from stretto.weights.library import ModelLibrary

TOP = 4


def table(name: str, columns: int) -> list[list[str]]:
    """Rows of a table beside this file."""
    with (Path(__file__).parent / name).open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [row for row in rows if len(row) == columns and not row[0].startswith("#")]


def load() -> tuple[list[str], dict[str, list[tuple[str, str]]]]:
    """What is remembered, and by kind what was said and what is asked about it."""
    labelled, others = table("paraphrases.tsv", 4), table("other_words.tsv", 2)
    said = [one for _, _, one, _ in labelled] + [one for one, _ in others]
    alike = [(one, two) for _, kind, one, two in labelled if kind == "paraphrase"]
    return said, {"paraphrases": alike, "other_words": [(one, two) for one, two in others]}


async def measure(memory: SessionMemory) -> dict[str, object]:
    said, questions = load()
    for text in said:
        await memory.record("", "default", text, "Yes.")
    results: dict[str, object] = {}
    for kind, asked in questions.items():
        first = found = 0
        times_s = []
        for one, two in asked:
            began = time.perf_counter()
            recollection = await memory.recall("", "default", two)
            times_s.append(time.perf_counter() - began)
            texts = [] if recollection is None else [entry.text for entry in recollection.exchanges]
            found += one in texts
            first += texts[-1:] == [one]  # the most relevant stands last
        results[kind] = {
            "asked": len(asked),
            f"recalled_of_{TOP}": round(found / len(asked), 3),
            "most_relevant": round(first / len(asked), 3),
            "p50_ms": round(1000 * statistics.median(times_s), 1),
        }
    return results


async def run() -> None:
    installed = ModelLibrary(load_settings({}).settings.models_dir).require("minilm")
    embedder = Embedder(EmbeddingModel(installed.path), name="minilm")
    results = {}
    for name, meaning in (("words", None), ("hybrid", meaning_of(embedder))):
        with tempfile.TemporaryDirectory() as directory:
            async with await Store.open(Path(directory) / "stretto.db", [SCHEMA]) as store:
                memory = SessionMemory(store, top_k=TOP, max_entries=10_000, meaning=meaning)
                results[name] = await measure(memory)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    trio.run(run)

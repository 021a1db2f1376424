"""Scores of pairs against transformers, and the reranker's own promises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.embedding import CrossEncoder, Reranker
from stretto.errors import EngineError, InvalidRequest, StartupError
from support.embedding_tiny import tiny_embedder
from support.reranker_tiny import tiny_reranker

QUERY = "how do i close my account?"
DOCUMENTS = [
    "open the account",
    "paris is the capital of france",
    "close it",
    "no",
    "the red green blue bank",
]


@pytest.fixture
def model(tmp_path: Path) -> Iterator[CrossEncoder]:
    with closing(CrossEncoder(tiny_reranker(tmp_path / "model"))) as opened:
        yield opened


def reference_scores(directory: Path, query: str, documents: list[str]) -> Any:
    """By transformers' own tokenizer and model, in float64, one pair at a time."""
    import torch
    from transformers import BertForSequenceClassification, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "tokenizer.json"),
        cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]",
    )  # fmt: skip
    network = BertForSequenceClassification.from_pretrained(directory, attn_implementation="eager")
    network = network.double().eval()
    scores, counts = [], []
    with torch.inference_mode():
        for document in documents:
            first, second = (
                tokenizer(text, add_special_tokens=False, truncation=False, padding=False)["input_ids"]
                for text in (query, document)
            )
            ids = [2, *first, 3, *second, 3]
            types = [0] * (len(first) + 2) + [1] * (len(second) + 1)
            logits = network(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types])).logits
            scores.append(torch.sigmoid(logits)[0, 0].item())
            counts.append(len(ids))
    return np.array(scores), tuple(counts)


@pytest.mark.torch
async def test_scores_equal_transformers(tmp_path: Path) -> None:
    directory = tiny_reranker(tmp_path / "model", seed=3)
    wanted, counts = reference_scores(directory, QUERY, DOCUMENTS)
    with closing(CrossEncoder(directory)) as model:
        found = await Reranker(model, name="tiny").rank(QUERY, DOCUMENTS)
    assert found.scores.dtype == np.float32
    assert np.abs(found.scores - wanted).max() < 2e-6
    assert np.ptp(wanted) > 0.01
    assert found.token_counts == counts


async def test_a_score_does_not_depend_on_the_company(model: CrossEncoder) -> None:
    reranker = Reranker(model, name="tiny", threads=2)
    many = DOCUMENTS * 40  # several batches
    together = await reranker.rank(QUERY, many)
    alone = [(await reranker.rank(QUERY, [document])).scores[0] for document in DOCUMENTS]
    assert np.abs(together.scores.reshape(40, -1) - np.array(alone)).max() < 1e-6
    stats = reranker.stats()
    assert stats["queries"] == 1 + len(DOCUMENTS)
    assert stats["documents"] == len(many) + len(DOCUMENTS)
    assert isinstance(stats["batches"], int)
    assert stats["batches"] > 1 + len(DOCUMENTS)


async def test_what_is_too_long_is_refused_or_cut(model: CrossEncoder) -> None:
    reranker = Reranker(model, name="tiny")
    long = "no " * 30
    with pytest.raises(InvalidRequest, match="31 tokens; this model reads at most 15 there") as caught:
        await reranker.rank(QUERY, ["no", long])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "documents[1]")
    cut = await reranker.rank(QUERY, ["no", long], truncate=True)
    assert cut.token_counts == (11, 24)
    fits = await reranker.rank(QUERY, ["no " * 14])
    assert fits.scores[0] == pytest.approx(cut.scores[1], abs=1e-6)
    for query in ("no " * 21, "no " * 5000):
        with pytest.raises(InvalidRequest) as caught:
            await reranker.rank(query, ["no"], truncate=True)
        assert caught.value.param == "query"
    assert reranker.stats()["refused"] == 3
    assert reranker.stats()["truncated"] == 1


async def test_scores_that_are_none_are_an_error(tmp_path: Path) -> None:
    with closing(CrossEncoder(tiny_reranker(tmp_path / "model"))) as model:
        model._head[1][0] = np.nan
        with pytest.raises(EngineError, match="not finite") as caught:
            await Reranker(model, name="tiny").rank(QUERY, ["no"])
    assert caught.value.code == "rerank_failed"


def test_models_that_are_no_rerankers(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="no reranking model"):
        CrossEncoder(tiny_embedder(tmp_path / "embedder"))
    with pytest.raises(StartupError, match="a reranker has one"):
        CrossEncoder(tiny_reranker(tmp_path / "three", labels=3))
    broken = tiny_reranker(tmp_path / "broken")
    broken.joinpath("model.safetensors").unlink()
    with pytest.raises(StartupError, match=r"model\.safetensors is missing"):
        CrossEncoder(broken)

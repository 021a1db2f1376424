"""The embedder on the event loop: limits, fairness, failures, figures."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import trio

from stretto.embedding import Embedder, EmbeddingModel
from stretto.embedding.encoder import Float32Array
from stretto.errors import EngineError, InvalidRequest
from support.embedding_tiny import WORDS, tiny_embedder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> EmbeddingModel:
    return EmbeddingModel(tiny_embedder(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(params=[1, 3])
def embedder(model: EmbeddingModel, request: pytest.FixtureRequest) -> Embedder:
    return Embedder(model, name="tiny", threads=request.param)


async def test_texts_and_token_lists_are_the_same_thing(embedder: Embedder, model: EmbeddingModel) -> None:
    ids = model.encode(["open the account"])[0]
    found = await embedder.embed(["open the account", ids, ids[1:-1], "close the account"])
    assert found.vectors.shape == (4, 32)
    assert found.vectors.dtype == np.float32
    assert np.abs(found.vectors[:3] - found.vectors[0]).max() < 1e-6
    assert found.vectors[0] @ found.vectors[3] < 0.999
    assert found.token_counts == (5, 5, 5, 5)


async def test_many_texts_come_back_in_their_order(embedder: Embedder, model: EmbeddingModel) -> None:
    texts = [" ".join(WORDS[4 + (index + step) % 30] for step in range(index % 13)) for index in range(400)]
    found = await embedder.embed(texts)
    for index in (0, 1, 77, 200, 399):
        alone = model.forward(model.encode([texts[index]]))[0]
        assert np.abs(found.vectors[index] - alone).max() < 1e-6
    assert embedder.stats()["texts"] == 400
    assert embedder.stats()["batches"] == sum(found.token_counts) // 1024 + 1


async def test_nothing_at_all_is_no_vectors(embedder: Embedder) -> None:
    found = await embedder.embed([])
    assert found.vectors.shape == (0, 32)
    assert found.token_counts == ()


async def test_what_is_too_long_is_refused_with_both_numbers(embedder: Embedder) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await embedder.embed(["open", "open " * 15])
    assert refused.value.code == "context_length_exceeded"
    assert refused.value.param == "input[1]"
    assert "has 17 tokens" in refused.value.message
    assert "at most 16" in refused.value.message
    with pytest.raises(InvalidRequest, match="has some 207 tokens or more"):
        await embedder.embed(["open " * 1000])
    assert embedder.stats()["refused"] == 2
    assert embedder.stats()["batches"] == 0


async def test_truncation_happens_when_it_is_asked_for(embedder: Embedder) -> None:
    found = await embedder.embed(["open " * 40, "open " * 14, [5] * 30], truncate=True)
    assert found.token_counts == (16, 16, 16)
    assert np.abs(found.vectors[0] - found.vectors[1]).max() < 1e-6
    assert embedder.stats()["truncated"] == 2


async def test_ids_of_another_vocabulary_are_refused(embedder: Embedder) -> None:
    with pytest.raises(
        InvalidRequest, match=rf"'input\[1\]\[2\]' is 100000; .* 0 to {len(WORDS) - 1}\."
    ) as refused:
        await embedder.embed(["open", [1, 2, 100_000]])
    assert refused.value.param == "input[1]"


async def test_weights_that_compute_nothing_are_an_error(
    embedder: Embedder, model: EmbeddingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = np.full((1, 32), np.nan, dtype=np.float32)
    monkeypatch.setattr(model, "forward", lambda sequences: bad)
    with pytest.raises(EngineError) as failed:
        await embedder.embed(["open"])
    assert failed.value.code == "embedding_failed"
    assert embedder.stats()["failed"] == 1


async def test_one_text_does_not_wait_for_all_of_many(
    model: EmbeddingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = Embedder(model, name="tiny", threads=1)
    finished: list[str] = []
    real = model.forward
    go_on = threading.Semaphore(1)

    def slow(sequences: list[list[int]]) -> Float32Array:
        go_on.acquire()
        return real(sequences)

    monkeypatch.setattr(model, "forward", slow)

    async def run(name: str, texts: list[str]) -> None:
        await embedder.embed(texts)
        finished.append(name)

    with trio.fail_after(90):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, "many", ["open the account now"] * 2000)
            while not embedder.stats()["batches"]:
                await trio.lowlevel.checkpoint()
            nursery.start_soon(run, "one", ["open"])
            while not finished:
                go_on.release()
                await trio.testing.wait_all_tasks_blocked()
            assert finished == ["one"]
            go_on.release(20)


async def test_a_caller_who_goes_ends_the_work(
    model: EmbeddingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = Embedder(model, name="tiny", threads=1)
    computed = 0
    real = model.forward

    def counting(sequences: list[list[int]]) -> Float32Array:
        nonlocal computed
        computed += 1
        trio.from_thread.run_sync(scope.cancel)
        return real(sequences)

    monkeypatch.setattr(model, "forward", counting)
    with trio.CancelScope() as scope:
        await embedder.embed(["open the account now"] * 2000)
    assert scope.cancelled_caught
    assert computed == 1

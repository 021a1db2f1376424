"""Embeddings by the real model, through the official ``openai`` package and over the socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest

from support.daemon import ECHO, RunningDaemon, running

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, minilm_path: Path) -> Iterator[RunningDaemon]:
    with running(tmp_path_factory.mktemp("embed"), *ECHO, "--embedder", str(minilm_path)) as daemon:
        yield daemon


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="local", max_retries=0) as client:
        yield client


def embedder_of(client: openai.OpenAI) -> str:
    (name,) = [model.id for model in client.models.list() if "embeddings" in model.capabilities]  # type: ignore[attr-defined]
    return name


def test_the_sdk_gets_vectors_that_mean_something(client: openai.OpenAI) -> None:
    name = embedder_of(client)
    texts = ["How do I close my account?", "How can my account be closed?", "The cat sleeps on the sofa."]
    reply = client.embeddings.create(model=name, input=texts)
    vectors = np.array([entry.embedding for entry in reply.data])
    assert vectors.shape == (3, 384)
    assert vectors[0] @ vectors[1] > 0.8
    assert vectors[0] @ vectors[2] < 0.3
    assert reply.usage.prompt_tokens == reply.usage.total_tokens == 27
    numbers = client.embeddings.create(model=name, input=texts, encoding_format="float")
    assert np.array_equal(
        np.array([entry.embedding for entry in numbers.data], dtype=np.float32), vectors.astype(np.float32)
    )


def test_tokens_dimensions_and_refusals(client: openai.OpenAI) -> None:
    name = embedder_of(client)
    text = client.embeddings.create(model=name, input="hello world").data[0].embedding
    tokens = client.embeddings.create(model=name, input=[[7592, 2088]], dimensions=100).data[0].embedding
    assert len(tokens) == 100
    head = np.array(text[:100]) / np.linalg.norm(text[:100])
    assert np.abs(np.array(tokens) - head).max() < 1e-6
    with pytest.raises(openai.BadRequestError, match="has 402 tokens; this model reads at most 256"):
        client.embeddings.create(model=name, input="word " * 400)
    with pytest.raises(openai.NotFoundError, match="computes no embeddings here"):
        client.embeddings.create(model="echo", input="word")

"""OpenAI's Embeddings dialect: a body to a request, vectors to a body."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stretto.conversation.events import Usage
from stretto.dialects.fields import read_fields
from stretto.dialects.json_text import dumps
from stretto.errors import InvalidRequest

EMBEDDINGS_SCHEMA = "openai-embeddings-request"
ID_PREFIX = "embd-"
MAX_INPUTS = 2048

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """What is asked for.

    Attributes:
        model: as the client wrote it.
        inputs: texts, or lists of token ids.
        base64: whether vectors are wanted as base64.
        dimensions: length that vectors are cut to, or None for all.
        truncate: whether what is too long may be cut.
    """

    model: str
    inputs: tuple[str | tuple[int, ...], ...]
    base64: bool = False
    dimensions: int | None = None
    truncate: bool = False


def parse_embeddings(body: bytes) -> EmbeddingsRequest:
    """Read the body of ``POST /v1/embeddings``.

    Raises:
        InvalidRequest: the codes of ``read_fields``; ``invalid_value`` for an input that mixes kinds or is too long a list.
    """
    fields = read_fields(EMBEDDINGS_SCHEMA, body)
    return EmbeddingsRequest(
        model=fields["model"],
        inputs=_inputs(fields["input"]),
        base64=fields.get("encoding_format") == "base64",
        dimensions=None if "dimensions" not in fields else int(fields["dimensions"]),
        truncate=fields.get("truncate", False),
    )


def _inputs(given: str | list[Any]) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(given, str):
        return (given,)
    kind = _kind(given[0])
    for index, item in enumerate(given):
        if _kind(item) != kind:
            raise InvalidRequest(
                f"'input[{index}]' is {_kind(item)}, and 'input[0]' is {kind}; all must be of one kind.",
                param=f"input[{index}]",
            )
    if kind == _TOKEN:
        return (tuple(map(int, given)),)
    if len(given) > MAX_INPUTS:
        raise InvalidRequest(
            f"'input' is a list of {len(given)}; it must be a list of at most {MAX_INPUTS}.",
            param="input",
            remedy="Send several requests.",
        )
    return tuple(item if isinstance(item, str) else tuple(map(int, item)) for item in given)


_TOKEN = "a token id"


def _kind(item: object) -> str:
    return "a text" if isinstance(item, str) else "a list of token ids" if isinstance(item, list) else _TOKEN


def render_embeddings(request: EmbeddingsRequest, model: str, vectors: Float32Array, used: Usage) -> bytes:
    """The reply's body.

    Args:
        request: what was asked for.
        model: the id of the model that computed.
        vectors: float32 [inputs, dimensions]; every value reads back as exactly this float32.
        used: tokens read of all inputs.
    """
    usage = dumps({"prompt_tokens": used.prompt_tokens, "total_tokens": used.total_tokens, **used.cost})
    written = _base64_texts(vectors) if request.base64 else _number_texts(vectors)
    entries = ",".join(
        f'{{"object":"embedding","index":{index},"embedding":{text}}}' for index, text in enumerate(written)
    )
    return f'{{"object":"list","data":[{entries}],"model":{dumps(model)},"usage":{usage}}}'.encode()


def _base64_texts(vectors: Float32Array) -> list[str]:
    return [f'"{base64.b64encode(row.astype("<f4").tobytes()).decode()}"' for row in vectors]


def _number_texts(vectors: Float32Array) -> list[str]:
    # Nine digits tell any two float32 apart, and are written three times as fast as the shortest that do.
    template = "[" + ",".join(["%.9g"] * vectors.shape[1]) + "]"
    return [template % tuple(row.tolist()) for row in vectors]

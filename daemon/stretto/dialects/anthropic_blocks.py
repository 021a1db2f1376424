"""Content blocks of the Messages dialect that become text, and the refusal of those that cannot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stretto.errors import InvalidRequest
from stretto.schemas import shown

Block = Mapping[str, Any]
Content = str | Sequence[Block]


def text_of(content: Content, path: str) -> str:
    """Content as one text.

    Raises:
        InvalidRequest: ``unsupported_content`` with the path of a block that is no text.
    """
    if isinstance(content, str):
        return content
    return joined(block_text(block, f"{path}[{index}]") for index, block in enumerate(content))


def block_text(block: Block, path: str) -> str:
    """One block as text; a document or a search result with its title before it.

    Raises:
        InvalidRequest: see ``text_of``.
    """
    kind = block["type"]
    if kind == "text":
        return str(block["text"])
    if kind == "search_result":
        return joined([block["title"], block["source"], text_of(block["content"], f"{path}.content")])
    if kind == "document":
        return joined(
            [block.get("title") or "", block.get("context") or "", _document(block["source"], path)]
        )
    if kind == "tool_reference":
        return str(block["tool_name"])
    raise InvalidRequest(
        f"'{path}.type' is {shown(kind)}; a block of this kind cannot be read here.",
        code="unsupported_content",
        param=f"{path}.type",
        remedy="Send text; this model is served without images, files and tools of the server.",
    )


def joined(texts: Iterable[str]) -> str:
    """Texts that stand apart, as one: with a line break between two where there is none yet."""
    whole = ""
    for text in texts:
        apart = not whole or not text or whole.endswith("\n") or text.startswith("\n")
        whole += text if apart else f"\n{text}"
    return whole


def _document(source: Block, path: str) -> str:
    if source["type"] == "text":
        return str(source["data"])
    if source["type"] == "content":
        return text_of(source["content"], f"{path}.source.content")
    raise InvalidRequest(
        f"'{path}.source.type' is {shown(source['type'])}; only the text of a document can be read here.",
        code="unsupported_content",
        param=f"{path}.source.type",
        remedy="Send the document's text, as a source of type text.",
    )

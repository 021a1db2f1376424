"""Raw prompts: control tokens, BOS, filling in the middle; and their echo with each token's own text."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.conversation import Echo, PromptEcho, RawPrompt, TokenLogprob, TopLogprob, encode_raw
from stretto.conversation.infill import infill_of
from stretto.errors import InvalidRequest
from support.conversation_tokens import CharTokenizer, GivenToken

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|endoftext|>")
CHATML = ("<|im_start|>", "<|im_end|>")


class Vocabulary(CharTokenizer):
    """Has an end token, and may put a space before each text, as SentencePiece does."""

    def __init__(self, *special: str, spaced: bool = False, **options: Any) -> None:
        super().__init__((*special, "<end>"), **options)
        self.end_ids = frozenset({self.id_of("<end>")})
        self._spaced = spaced

    def encode(self, text: str, *, allow_special: bool) -> list[int]:
        return super().encode(" " + text if self._spaced else text, allow_special=allow_special)


def chars(text: str) -> list[int]:
    return [ord(character) for character in text]


def test_control_tokens_in_a_text_are_control_tokens() -> None:
    vocabulary = Vocabulary(*CHATML)
    encoded = encode_raw(vocabulary, RawPrompt("<|im_start|>user\nHi<|im_end|>"))
    start, end = map(vocabulary.id_of, CHATML)
    assert list(encoded.ids) == [start, *chars("user\nHi"), end]
    assert encoded.end_ids == vocabulary.end_ids
    assert not encoded.added_bos


@pytest.mark.parametrize(
    ("prompt", "begins", "added"),
    [
        (RawPrompt("Hi"), True, True),
        (RawPrompt("<s>Hi"), True, False),
        (RawPrompt("Hi", add_bos=False), False, False),
        (RawPrompt(ids=tuple(chars("Hi"))), False, False),
    ],
)
def test_bos_comes_once_where_the_model_wants_it(prompt: RawPrompt, begins: bool, added: bool) -> None:
    vocabulary = Vocabulary("<s>", bos="<s>", add_bos=True)
    encoded = encode_raw(vocabulary, prompt)
    assert list(encoded.ids) == [vocabulary.id_of("<s>")] * begins + chars("Hi")
    assert encoded.added_bos == added
    unwilling = Vocabulary("<s>", bos="<s>")
    assert list(encode_raw(unwilling, RawPrompt("Hi")).ids) == chars("Hi")


def test_an_empty_prompt_needs_a_token_that_begins_it() -> None:
    assert len(encode_raw(Vocabulary("<s>", bos="<s>", add_bos=True), RawPrompt("")).ids) == 1
    with pytest.raises(InvalidRequest, match="empty") as caught:
        encode_raw(Vocabulary(), RawPrompt(""))
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("wrong", [-1, 0x110001, 2**31 - 1])
def test_token_ids_outside_the_vocabulary(wrong: int) -> None:
    with pytest.raises(InvalidRequest, match=f"token id {wrong} at place 1; the vocabulary is 0 to 1114112"):
        encode_raw(Vocabulary(), RawPrompt(ids=(0x110000, wrong)))


# Filling in the middle -------------------------------------------------------------------------------------------------


def test_a_suffix_stands_between_the_tokens_for_it_as_plain_text() -> None:
    vocabulary = Vocabulary(*QWEN, *CHATML)
    encoded = encode_raw(vocabulary, RawPrompt("a <|im_end|> = ", suffix=" <end>;"))
    prefix, suffix, middle = map(vocabulary.id_of, QWEN[:3])
    assert list(encoded.ids) == [prefix, *chars("a <|im_end|> = "), suffix, *chars(" <end>;"), middle]
    assert encoded.end_ids == vocabulary.end_ids | {vocabulary.id_of("<|fim_pad|>")}


def test_bos_before_a_suffix_and_token_ids_with_one() -> None:
    vocabulary = Vocabulary("<s>", "[SUFFIX]", "[PREFIX]", bos="<s>", add_bos=True)
    bos, suffix, prefix = map(vocabulary.id_of, ("<s>", "[SUFFIX]", "[PREFIX]"))
    assert list(encode_raw(vocabulary, RawPrompt("a", suffix="b")).ids) == [bos, suffix, *chars("b"), prefix, *chars("a")]  # fmt: skip
    ids = tuple(chars("a"))
    assert list(encode_raw(vocabulary, RawPrompt(ids=ids, suffix="b")).ids) == [suffix, *chars("b"), prefix, *chars("a")]  # fmt: skip


@pytest.mark.parametrize(
    ("special", "order"),
    [
        (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), "<fim_prefix> prefix <fim_suffix> suffix <fim_middle>"),
        (("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"), "<｜fim▁begin｜> prefix <｜fim▁hole｜> suffix <｜fim▁end｜>"),
        (("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"), "▁<PRE> prefix ▁<SUF> suffix ▁<MID>"),
        (("[SUFFIX]", "[PREFIX]", "[MIDDLE]"), "[SUFFIX] suffix [PREFIX] prefix"),
    ],
)  # fmt: skip
def test_families(special: tuple[str, ...], order: str) -> None:
    vocabulary = Vocabulary(*special)
    infill = infill_of(vocabulary)
    assert infill is not None
    shown = [part if isinstance(part, str) else vocabulary.token_text(part) for part in infill.order]
    assert " ".join(shown) == order
    assert infill.end_ids == {vocabulary.id_of(text) for text in special if text == "▁<EOT>"}


@pytest.mark.parametrize("special", [(), CHATML, QWEN[:2]])
def test_a_vocabulary_without_them_refuses_a_suffix(special: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest, match="cannot be given a 'suffix'") as caught:
        encode_raw(Vocabulary(*special), RawPrompt("a", suffix="b"))
    assert (caught.value.code, caught.value.param) == ("unsupported_value", "suffix")


# Echo ------------------------------------------------------------------------------------------------------------------


def echo_of(vocabulary: Vocabulary, prompt: RawPrompt, *, logprobs: bool = True, cut: int = 3) -> Echo:
    encoded = encode_raw(vocabulary, prompt)
    echo = PromptEcho(vocabulary, index=2, prompt=prompt, encoded=encoded, logprobs=logprobs)
    tokens = [
        GivenToken(token_id, -float(place) if place else None, ((ord("x"), -0.5),) if place else ())
        for place, token_id in enumerate(encoded.ids)
    ]
    found = echo.push(tokens[:cut])
    if logprobs:
        assert found == []
        found = echo.push(tokens[cut:])
    assert len(found) == 1
    assert echo.push([]) == []
    return found[0]


def test_without_log_probabilities_it_comes_at_once() -> None:
    assert echo_of(Vocabulary(), RawPrompt("Hello"), logprobs=False, cut=0) == Echo(2, "Hello")
    ids = (*chars("Hé"), Vocabulary().id_of("<end>"))
    assert echo_of(Vocabulary(), RawPrompt(ids=ids), logprobs=False, cut=0) == Echo(2, "Hé<end>")


def test_each_token_with_what_it_adds() -> None:
    vocabulary = Vocabulary("<s>", bos="<s>", add_bos=True)
    top = (TopLogprob("x", -0.5, b"x"),)
    assert echo_of(vocabulary, RawPrompt("é<end>a")) == Echo(
        2,
        "é<end>a",
        (
            TokenLogprob("<s>", None, b""),
            TokenLogprob("é", -1.0, "é".encode(), top),
            TokenLogprob("<end>", -2.0, b"<end>", top),
            TokenLogprob("a", -3.0, b"a", top),
        ),
    )


def test_a_bos_that_was_sent_is_part_of_the_text() -> None:
    vocabulary = Vocabulary("<s>", bos="<s>", add_bos=True)
    echo = echo_of(vocabulary, RawPrompt("<s>abc"))
    assert echo.text == "<s>abc"
    assert echo.logprobs[0] == TokenLogprob("<s>", None, b"<s>")
    ids = (vocabulary.id_of("<s>"), *chars("abc"))
    assert echo_of(vocabulary, RawPrompt(ids=ids)) == echo


@pytest.mark.parametrize("text", ["abcd", " abcd"])
def test_a_space_that_the_vocabulary_puts_before_a_text_is_not_in_it(text: str) -> None:
    echo = echo_of(Vocabulary(spaced=True), RawPrompt(text))
    assert echo.text == text
    assert b"".join(entry.data for entry in echo.logprobs) == text.encode()
    assert len(echo.logprobs) == len(text) + 1

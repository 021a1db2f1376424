"""The echo tokenizer: every text survives, control tokens only when allowed."""

from __future__ import annotations

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.backends.echo import ECHO_CHAT_TEMPLATE, EchoTokenizer

TOKENIZER = EchoTokenizer()


@given(st.text(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_text_survives(text: str, allow_special: bool) -> None:
    ids = TOKENIZER.encode(text, allow_special=allow_special)
    assert TOKENIZER.decode(ids, skip_special=False) == text
    assert all(0 <= token_id < TOKENIZER.vocab_size for token_id in ids)


@given(st.text())
@settings(max_examples=60, deadline=None)
def test_tokens_are_utf8_bytes(text: str) -> None:
    ids = TOKENIZER.encode(text, allow_special=False)
    assert b"".join(TOKENIZER.token_bytes(token_id) for token_id in ids) == text.encode()


def test_control_tokens() -> None:
    text = "a<|im_start|>b<|im_end|>"
    assert len(TOKENIZER.encode(text, allow_special=True)) == 4
    assert TOKENIZER.encode(text, allow_special=False) == list(text.encode())
    ids = TOKENIZER.encode(text, allow_special=True)
    assert TOKENIZER.decode(ids) == "ab"
    assert [TOKENIZER.is_special(token_id) for token_id in ids] == [False, True, False, True]
    assert TOKENIZER.token_text(ids[1]) == "<|im_start|>"
    assert TOKENIZER.eos_id in TOKENIZER.end_ids
    assert "<|im_end|>" in TOKENIZER.special_texts
    assert TOKENIZER.encode(TOKENIZER.eos_token, allow_special=True) == [TOKENIZER.eos_id]
    assert TOKENIZER.encode(TOKENIZER.bos_token, allow_special=True) == [TOKENIZER.bos_id]


def test_half_characters_and_surrogates() -> None:
    half = TOKENIZER.encode("é", allow_special=False)[:1]
    assert TOKENIZER.decode(half) == "\ufffd"
    assert TOKENIZER.token_text(half[0]) == "\ufffd"
    assert TOKENIZER.decode(TOKENIZER.encode("x\ud800y", allow_special=False)) == "x\ufffdy"


@pytest.mark.parametrize("wrong", [-1, 260])
def test_unknown_ids_are_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match=f"token id {wrong} is outside the vocabulary of 260"):
        TOKENIZER.token_bytes(wrong)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        TOKENIZER.decode([wrong])


def test_template_is_chatml() -> None:
    template = jinja2.Environment().from_string(ECHO_CHAT_TEMPLATE)
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert template.render(messages=messages, add_generation_prompt=True) == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (
        template.render(messages=[{"role": "assistant", "content": None}])
        == "<|im_start|>assistant\n<|im_end|>\n"
    )

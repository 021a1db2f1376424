"""Prompts that end inside the assistant's turn, beside the reference implementation's."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from stretto.conversation import ChatTemplate, Message, encode_chat
from stretto.conversation.template import message_dict
from stretto.errors import InvalidRequest
from support.conversation_templates import BOS, PLAIN, TOOLS
from support.conversation_tokens import CharTokenizer, message, request

SPECIAL = ("<|im_start|>", "<|im_end|>", "<turn>")


@functools.cache
def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source, eos_token="<|im_end|>")


def prompt(source: str, *messages: Message) -> str:
    tokenizer = CharTokenizer(SPECIAL)
    return tokenizer.text(encode_chat(compiled(source), tokenizer, request(*messages, continues=True)))


def reference(source: str, *messages: Message) -> str:
    rendered, _ = render_jinja_template(
        [[message_dict(each) for each in messages]],
        chat_template=source,
        continue_final_message=True,
        bos_token="",
        eos_token="<|im_end|>",
    )
    text: str = rendered[0]
    return text


@pytest.mark.parametrize("source", [PLAIN, BOS, TOOLS])
@pytest.mark.parametrize("begun", ["The best answer is (", "{", "a\n  b", "<tool_call>"])
def test_as_the_reference_does(source: str, begun: str) -> None:
    conversation = message("user", "Which? (A) or (B)"), message("assistant", begun)
    assert prompt(source, *conversation) == reference(source, *conversation)


@given(
    st.text(st.sampled_from("ab (\n\ue000\ue001"), min_size=1, max_size=8), st.sampled_from([*SPECIAL, ""])
)
def test_the_prompt_ends_with_the_text_whatever_it_is(text: str, control: str) -> None:
    begun = text + control + text
    conversation = message("user", begun), message("assistant", begun)
    assert prompt(PLAIN, *conversation).endswith(f"<|im_start|>assistant\n{begun}")
    assert not compiled(PLAIN).render(conversation).endswith(begun)


def test_white_space_at_the_end_is_kept_where_a_template_trims() -> None:
    conversation = message("user", "x"), message("assistant", "  Yes, ")
    assert prompt(BOS, *conversation).endswith("<turn>model\nYes, ")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content }}",
        "{{ messages[-1].content }}{{ messages[-1].content }}",
        "{{ messages[-1].content | upper | replace(messages[-1].content | upper, 'x') }}",
    ],
)
def test_a_template_that_cannot_leave_the_turn_open_says_so(source: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot leave the assistant's last turn open") as caught:
        prompt(source, message("user", "x"), message("assistant", "y"))
    assert caught.value.code == "template_error"


def test_no_character_left_for_the_mark() -> None:
    everything = "".join(map(chr, range(0xE000, 0xF900)))
    with pytest.raises(InvalidRequest) as caught:
        prompt(PLAIN, message("user", everything), message("assistant", "y"))
    assert caught.value.code == "invalid_message"

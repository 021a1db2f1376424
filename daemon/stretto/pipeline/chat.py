"""What a chat model adds to a request: its prompt, the rules that its answer keeps to, and how the answer is read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stretto.conversation import (
    AnswerFormat,
    ChatTemplate,
    History,
    RecentTurns,
    TextAssembler,
    Thinking,
    Tokenizer,
    callable_tools,
    conversation_strings,
    encode_chat,
    encode_rest,
    unused_character,
    without_volatile_lines,
)
from stretto.conversation.messages import Message, Request, TextPart
from stretto.engine import TokenConstraint
from stretto.grammar import AnswerRules, GrammarCompiler
from stretto.pipeline.answer import Said


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered conversation.

    Attributes:
        ids: its tokens.
        thinking: whether the answer may begin with reasoning, or begins within it.
        history: what it means, for when the answer comes back.
        predicted_ids: tokens of the text that the answer is expected to repeat.
    """

    ids: Sequence[int]
    thinking: Thinking
    history: History
    predicted_ids: Sequence[int] = ()


class Chat:
    """A model with a chat template. Its methods may be called from any thread; those that render or compile take their time.

    Args:
        template, tokenizer: the model's own.
        grammars: compiles for the tokenizer.
        form: see AnswerFormat.
        context_tokens: of the model.
        turns: keeps its own turns, to be written as they were said when they come back; None keeps none.
    """

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        grammars: GrammarCompiler,
        form: AnswerFormat,
        *,
        context_tokens: int,
        turns: RecentTurns | None = None,
    ) -> None:
        self.form = form
        self._template = template
        self._tokenizer = tokenizer
        self._grammars = grammars
        self._context_tokens = context_tokens
        self._turns = turns
        self.end_ids = form.end_ids(tokenizer)
        """The tokens that end an answer."""

    def prompt(self, request: Request) -> ChatPrompt:
        """Render and tokenise a conversation.

        Raises:
            InvalidRequest: see ``encode_chat``.
        """
        prepared = self.form.prepared(request)
        history = History.of(request, without_volatile_lines(request.messages), prepared.template_kwargs)
        ids = self._replayed(request, history)
        # What was said is longer than what a template writes of it. It may not be what makes a prompt too long.
        least_tokens = 1 if request.lower_max_tokens else request.max_tokens or 1
        if ids is None or len(ids) + least_tokens > self._context_tokens:
            ids = encode_chat(self._template, self._tokenizer, prepared)
        elif self._turns is not None:
            self._turns.replayed()
        predicted = self._tokenizer.encode(request.predicted, allow_special=False)
        return ChatPrompt(ids, self.form.thinking_after(ids, self._tokenizer), history, predicted)

    def remember(self, prompt: ChatPrompt, said: Said) -> None:
        """Keep an answer for when it comes back."""
        if self._turns is not None:
            key = prompt.history.answered(said.text, said.calls)
            self._turns.keep(key, prompt.ids, said.token_ids)

    def _replayed(self, request: Request, history: History) -> Sequence[int] | None:
        """The prompt with the last turn of ours that is in it, and all before that, as it was; None when there is none."""
        if self._turns is None:
            return None
        messages = without_volatile_lines(request.messages)
        found = self._turns.latest(history, messages[:-1] if request.continues else messages)
        if found is None:
            return None
        index, said = found
        marked = self._marked(request, messages, index)
        if marked is None:
            return None
        ends = [self._tokenizer.token_text(token_id) for token_id in self.end_ids]
        rest = encode_rest(self._template, self._tokenizer, *marked, ends)
        return None if rest is None else [*said, *rest]

    def _marked(
        self, request: Request, messages: Sequence[Message], index: int
    ) -> tuple[Request, str] | None:
        """The request as the template is to see it, with a mark for the content of one turn; and the mark."""
        mark = unused_character("".join(conversation_strings(request)) + self._template.source)
        if mark is None:
            return None
        turn = messages[index]
        calls = turn.tool_calls
        if calls:
            calls = (*calls[:-1], replace(calls[-1], arguments=json.dumps({mark: mark})))
        content = (TextPart(mark),) if turn.text or not calls else ()
        turn = replace(turn, content=content, tool_calls=calls, reasoning=None)
        marked = replace(request, messages=(*messages[:index], turn, *messages[index + 1 :]))
        return self.form.prepared(marked), mark

    def constraints(self, rules: AnswerRules, prompt: ChatPrompt, count: int) -> Sequence[TokenConstraint]:
        """What each of ``count`` answers is held to, from its beginning.

        Raises:
            InvalidRequest: see ``GrammarCompiler.compile_answer``.
        """
        compiled = self._grammars.compile_answer(rules)
        return [compiled.follow(prompt.thinking) for _ in range(count)]

    def assembler(self, request: Request, prompt: ChatPrompt, index: int) -> TextAssembler:
        """What makes events of the tokens of the answer with this index."""
        return TextAssembler(
            self._tokenizer,
            index=index,
            stop=request.stop,
            logprobs=request.logprobs is not None,
            channels=self.form.channels(request, opened=prompt.thinking == "open"),
            marks=self.form.marks,
        )

    def rules(self, request: Request) -> AnswerRules:
        """What the answer has to keep to."""
        places = {tool.name: tool.param or f"tools[{index}]" for index, tool in enumerate(request.tools)}
        tools = callable_tools(request)
        return AnswerRules(
            tools=tuple((tool, places[tool.name]) for tool in tools),
            must_call=request.tool_choice.mode == "required",
            parallel=request.parallel_tool_calls and not request.tool_choice.names_one,
            dialect=self.form.dialect if tools else None,
            constraint=request.constraint,
            reasoning=self.form.reasoning,
            budget_tokens=self.form.reasoning_budget(request.reasoning),
            marks=self.form.marks,
        )

    def stats(self) -> dict[str, object]:
        """How the model's answers are read."""
        reasoning = self.form.reasoning
        return {
            "tool_dialect": self.form.dialect.name,
            "reasoning": None if reasoning is None else reasoning.name,
            **({} if self._turns is None else self._turns.stats()),
        }

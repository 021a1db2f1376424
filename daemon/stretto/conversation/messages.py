"""The canonical request: what every dialect is parsed into. Plain data, no I/O, no decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from stretto.conversation.caller import Caller
from stretto.conversation.constraint import Constraint
from stretto.conversation.priority import Priority

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of text in a message."""

    text: str


ContentPart = TextPart
"""What a message may hold. Images join when a backend can see them."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the assistant made. ``arguments`` is the JSON text exactly as it was sent."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn.

    Attributes:
        role: ``developer`` of the wire is ``system`` here.
        content: parts in order; empty when the turn is tool calls only.
        name: the participant's name, if the client gave one.
        tool_calls: calls of an assistant turn.
        tool_call_id: the call that a tool turn answers.
        reasoning: the assistant's reasoning, kept apart from its answer.
    """

    role: Role
    content: tuple[ContentPart, ...] = ()
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None

    @property
    def text(self) -> str:
        """All text parts, joined with nothing between."""
        return "".join(part.text for part in self.content)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A function the model may call.

    Attributes:
        parameters: the JSON Schema of its arguments.
        strict: whether they are to be kept to as they are; otherwise what no grammar can hold is loosened.
        param: the request's field that holds the schema, for errors.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False
    param: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. The defaults are the plain distribution of the model.

    The order is fixed: logit bias, penalties, temperature, top-k, top-p, min-p, draw. ``temperature`` 0 is the exact argmax of
    the biased and penalised logits (lowest token id wins a tie).

    Attributes:
        temperature: >= 0.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set whose probability reaches this; 0 < p <= 1.
        min_p: drop tokens below this share of the most likely one's probability; 0 <= p <= 1.
        repetition_penalty: > 0; over prompt and answer, as in CTRL (Keskar et al. 2019).
        presence_penalty, frequency_penalty: -2..2; over the answer only, as OpenAI documents them.
        logit_bias: token id to bias, -100..100.
        seed: makes the draw reproducible whatever else runs; None draws from the system's entropy.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which of the offered functions the model may or must call.

    Attributes:
        mode: ``auto`` leaves it to the model, ``none`` offers no function, ``required`` makes the answer at least one call.
        allowed: the names it may call, or None for all that are offered. One named function is ``required`` with just that name.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    allowed: tuple[str, ...] | None = None

    @property
    def names_one(self) -> bool:
        """Whether just one function must be called: that is one call, whatever is said of several."""
        return self.mode == "required" and self.allowed is not None and len(self.allowed) == 1


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How much a model that thinks before it answers is to think.

    Attributes:
        enabled: on or off, or None for what the template does by itself.
        effort: the client's word for it (``low``, ``medium``, ``high``, …), or None.
        budget_tokens: most tokens of reasoning, or None.
        hidden: whether the client does not want to read it.
    """

    enabled: bool | None = None
    effort: str | None = None
    budget_tokens: int | None = None
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """A prompt that no template renders: the text, or the token ids; exactly one of them.

    Attributes:
        suffix: text that comes after the answer, for models that fill in the middle.
        echo: whether the answer begins with the prompt.
        add_bos: whether a text begins with BOS where the model wants it. Token ids are taken as they are.
    """

    text: str | None = None
    ids: tuple[int, ...] | None = None
    suffix: str | None = None
    echo: bool = False
    add_bos: bool = True


@dataclass(frozen=True, slots=True)
class Request:
    """One request for an answer, whatever dialect it came in.

    Attributes:
        id: ours, e.g. ``chatcmpl-`` and 32 hex digits; names the request in logs, admin calls and the reply.
        model: the model the client asked for, as it wrote it.
        messages: the conversation; empty when there are raw prompts.
        tools, tool_choice: offered functions, and which of them may or must be called.
        parallel_tool_calls: whether one answer may hold several calls.
        reasoning: see Reasoning.
        prompts: raw prompts in place of messages, each answered by itself.
        continues: whether the last message is the beginning of the answer, to be gone on with.
        sampling: see SamplingParams.
        max_tokens: the client's limit, or None when it names none. 0 reads the prompt and answers nothing.
        lower_max_tokens: whether a limit beyond what the context leaves is lowered to that, instead of refused.
        stop: strings that end the answer; they are not part of it.
        ignore_eos: whether the answer goes on past the tokens that end one.
        n: how many answers to each prompt, each drawn independently.
        best_of: how many are drawn for each prompt, of which the ``n`` most likely ones are the answers; None for just those.
        logprobs: how many alternatives to report for each token (0 = the chosen one only), or None for no logprobs.
        stream: whether the client reads the answer as it is made.
        include_usage: whether a stream ends with usage.
        template_kwargs: extra variables for the chat template.
        predicted: text that much of the answer is expected to repeat; it changes nothing but how soon the answer comes.
        user: the client's own label; never logged.
        constraint: what each answer must keep to, from its first character to its last.
        caller: who asks, and what it asks of memory and cache.
        priority: how urgent it is; changes nothing of the answer.
        reflected: what the dialect's own renderer needs of the body besides; nothing else looks at it.
    """

    id: str
    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    parallel_tool_calls: bool = True
    reasoning: Reasoning = field(default_factory=Reasoning)
    prompts: tuple[RawPrompt, ...] = ()
    continues: bool = False
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    lower_max_tokens: bool = False
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    best_of: int | None = None
    logprobs: int | None = None
    stream: bool = False
    include_usage: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    predicted: str = ""
    user: str | None = None
    constraint: Constraint | None = None
    caller: Caller = field(default_factory=Caller)
    priority: Priority = "normal"
    reflected: object = None

    @property
    def choices(self) -> int:
        """How many answers there are to all prompts: ``n`` to the first, then ``n`` to the next, and so on."""
        return self.n * max(1, len(self.prompts))

    @property
    def drawn(self) -> int:
        """How many answers are drawn for each prompt."""
        return max(self.n, self.best_of or 0)

    @property
    def sequences(self) -> int:
        """How many answers are drawn in all."""
        return self.drawn * max(1, len(self.prompts))

    def sampling_of(self, index: int) -> SamplingParams:
        """Sampling of the ``index``-th answer to a prompt: with a seed, each draws from its own reproducible stream."""
        if self.sampling.seed is None or index == 0:
            return self.sampling
        return replace(self.sampling, seed=(self.sampling.seed + index * _SEED_STRIDE) % 2**63)


_SEED_STRIDE = (
    0x9E3779B97F4A7C15  # 2**64 / golden ratio: neighbouring seeds do not collide with neighbouring answers
)

"""What an echo backend shall do: its sizes, its speed, its answer and its faults."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from stretto.errors import SettingsError


@dataclass(frozen=True, slots=True)
class EchoScript:
    """Steps and loads are counted from 1 over the life of the backend, reloads included; 0 means never.

    Attributes:
        reply: the answer, instead of the last user message.
        repeat: how often the answer is said before it ends; 0 says it without end.
        peak: logit of the right next token; all others lie in [0, 1). Lower it to make sampling draw others too.
        context_tokens: longest context.
        layer_groups: how many layer groups, each with a block table of its own.
        window_tokens: all layer groups but the first look back so far only; 0 without windows.
        kv_bytes_per_token: what a token of KV pretends to take, in each layer group.
        memory_bytes: what the device pretends to have.
        load_delay_s: time that a load takes.
        prefill_delay_s: time of a step in which logits are not wanted of all of a chunk's tokens: it is of a prompt.
        prefill_token_delay_s: time for each token of such chunks, on top.
        decode_delay_s: time for each token of the longest other chunk, an answer's: one token, and those of a draft.
        fail_at_load: this load raises ``StartupError``.
        oom_on_allocate: every allocation of KV memory raises ``BackendOutOfMemory``.
        fail_at_step, fail_every: this step, or each step that this divides, raises ``BackendFailure``.
        oom_at_step: this step raises ``BackendOutOfMemory``.
        lost_at_step: this step raises ``BackendLost``, and so does every one after it until the next load.
        crash_at_step: this step raises ``RuntimeError``, as a bug would.
        nan_at_step: the first row of this step's logits is NaN.
        stall_at_step: this step waits until ``EchoBackend.release`` or ``close``.
    """

    reply: str | None = None
    repeat: int = 1
    peak: float = 20.0
    context_tokens: int = 4096
    layer_groups: int = 1
    window_tokens: int = 0
    kv_bytes_per_token: int = 8
    memory_bytes: int = 1 << 30
    load_delay_s: float = 0.0
    prefill_delay_s: float = 0.0
    prefill_token_delay_s: float = 0.0
    decode_delay_s: float = 0.0
    fail_at_load: int = 0
    oom_on_allocate: bool = False
    fail_at_step: int = 0
    fail_every: int = 0
    oom_at_step: int = 0
    lost_at_step: int = 0
    crash_at_step: int = 0
    nan_at_step: int = 0
    stall_at_step: int = 0

    def __post_init__(self) -> None:
        for name in ("context_tokens", "layer_groups", "kv_bytes_per_token", "memory_bytes"):
            if getattr(self, name) < 1:
                raise _wrong(name, getattr(self, name), "a whole number of at least 1")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and not (math.isfinite(value) and value >= 0):
                raise _wrong(field.name, value, "a finite number of at least 0")

    @classmethod
    def parse(cls, text: str) -> EchoScript:
        """Read ``key=value,key=value``; ``reply`` takes all of the rest, commas included, and so comes last.

        Raises:
            SettingsError: an unknown or repeated key, or a value that is not allowed.
        """
        kinds = {field.name: str(field.type) for field in fields(cls)}
        values: dict[str, object] = {}
        rest = text.strip()
        while rest:
            key, equals, tail = rest.partition("=")
            key = key.strip()
            if not equals or key not in kinds:
                shown = rest.partition(",")[0]
                raise SettingsError(
                    f"echo script: {shown!r} is not one of its settings.",
                    remedy="Write key=value, separated by commas; keys are " + ", ".join(sorted(kinds)) + ".",
                )
            if key in values:
                raise SettingsError(f"echo script: {key} is set twice.")
            if key == "reply":
                values[key], rest = tail, ""
            else:
                value, _, rest = tail.partition(",")
                values[key] = _read(key, value.strip(), kinds[key])
                rest = rest.strip()
        return cls(**values)  # type: ignore[arg-type]  # the keys are the fields, the values were read by their types


def _read(key: str, text: str, kind: str) -> object:
    if kind == "bool":
        if text in ("true", "1"):
            return True
        if text in ("false", "0"):
            return False
        raise _wrong(key, text, "true or false")
    try:
        return float(text) if kind == "float" else int(text)
    except ValueError:
        raise _wrong(key, text, "a number" if kind == "float" else "a whole number") from None


def _wrong(key: str, value: object, allowed: str) -> SettingsError:
    return SettingsError(f"echo script: {key}={value} is not allowed; it must be {allowed}.", param=key)

"""A decoder as a short program for the native step: which operation, on which buffers, with which weights.

A family is a layout here and nothing else: the C side knows operations, not models. What each operation does is in
``src/step.h``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from stretto.weights.config import ModelConfig

LOGITS = -1
"""The output of a product that goes to the caller."""


class Kind(IntEnum):
    """``enum OpKind``."""

    EMBED = 0
    NORM = 1
    QUANTISE = 2
    MULTIPLY = 3
    ROTATE = 4
    ATTEND = 5
    MERGE = 6
    GATE = 7
    SELECT = 8


class Flag(IntFlag):
    """``enum OpFlag``."""

    NONE = 0
    QUANTISE = 1
    ACCUMULATE = 2
    SYNC = 4
    FINE = 8


class Buffer(IntEnum):
    """Scratch of a step, a row a token."""

    HIDDEN = 0
    NORMED = 1
    HEADS = 2
    MIXED = 3
    GATES = 4
    GATED = 5


@dataclass(frozen=True, slots=True)
class Instruction:
    """One operation; weights by canonical name, empty where there is none."""

    kind: Kind
    input: int
    output: int
    flags: Flag = Flag.SYNC
    column: int = 0
    layer: int = 0
    matrix: str = ""
    vector: str = ""
    second: str = ""


@dataclass(frozen=True, slots=True)
class Program:
    """What runs in a step, and how wide each buffer is."""

    instructions: tuple[Instruction, ...]
    widths: tuple[int, ...]
    widest_quantised: int


def decoder_program(
    config: ModelConfig, quantised: Callable[[str], bool], activation_bits: int = 16
) -> Program:
    """The program of the Llama family (llama, qwen2, qwen3).

    Args:
        config: the architecture.
        quantised: whether a matrix, by canonical name, takes quantised activations.
        activation_bits: 16 rounds the inputs of every quantised matrix to nearly 16 bits; 8 rounds them to 8, but for
            attention's three products and the logits, from which comes more than half of what rounding costs (by the
            KL divergence of the next token) and a sixth of a layer's work.
    """
    everywhere = Flag.FINE if activation_bits == 16 else Flag.NONE
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    head = "model.embed_tokens.weight" if config.tied_embeddings else "lm_head.weight"
    code = [Instruction(Kind.EMBED, 0, Buffer.HIDDEN)]

    def needed(*matrices: str, fine: Flag = everywhere) -> Flag:
        return Flag.QUANTISE | fine if any(quantised(name) for name in matrices) else Flag.NONE

    def products(source: Buffer, target: int, parts: list[tuple[str, int]], flags: Flag = everywhere) -> None:
        """Products of one input that need not wait for each other."""
        for number, (name, column) in enumerate(parts):
            last = Flag.SYNC if number == len(parts) - 1 else Flag.NONE
            bias = name.replace(".weight", ".bias") if config.attention_bias and _has_bias(name) else ""
            code.append(
                Instruction(
                    Kind.MULTIPLY, source, target, flags | last, column=column, matrix=name, vector=bias
                )
            )

    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        q, k, v, o = (f"{attention}{name}_proj.weight" for name in "qkvo")
        gate, up, down = (f"{mlp}{name}_proj.weight" for name in ("gate", "up", "down"))
        code.append(
            Instruction(
                Kind.NORM,
                Buffer.HIDDEN,
                Buffer.NORMED,
                Flag.SYNC | needed(q, k, v, fine=Flag.FINE),
                vector=prefix + "input_layernorm.weight",
            )
        )
        products(Buffer.NORMED, Buffer.HEADS, [(q, 0), (k, queries), (v, queries + keys)], Flag.FINE)
        norms = (attention + "q_norm.weight", attention + "k_norm.weight") if config.qk_norm else ("", "")
        code.append(
            Instruction(
                Kind.ROTATE, Buffer.HEADS, Buffer.HEADS, layer=layer, vector=norms[0], second=norms[1]
            )
        )
        code.append(Instruction(Kind.ATTEND, Buffer.HEADS, Buffer.MIXED, layer=layer))
        code.append(Instruction(Kind.MERGE, Buffer.HEADS, Buffer.MIXED))
        if layer == config.layers - 1:
            # Nothing reads the other rows any more.
            code.append(Instruction(Kind.SELECT, Buffer.HIDDEN, Buffer.MIXED))
        if needed(o):
            code.append(Instruction(Kind.QUANTISE, Buffer.MIXED, Buffer.MIXED, Flag.SYNC | everywhere))
        products(Buffer.MIXED, Buffer.HIDDEN, [(o, 0)], Flag.ACCUMULATE | everywhere)
        code.append(
            Instruction(
                Kind.NORM,
                Buffer.HIDDEN,
                Buffer.NORMED,
                Flag.SYNC | needed(gate, up),
                vector=prefix + "post_attention_layernorm.weight",
            )
        )
        products(Buffer.NORMED, Buffer.GATES, [(gate, 0), (up, config.ffn_size)])
        code.append(Instruction(Kind.GATE, Buffer.GATES, Buffer.GATED, Flag.SYNC | needed(down)))
        products(Buffer.GATED, Buffer.HIDDEN, [(down, 0)], Flag.ACCUMULATE | everywhere)
    code.append(
        Instruction(
            Kind.NORM,
            Buffer.HIDDEN,
            Buffer.NORMED,
            Flag.SYNC | needed(head, fine=Flag.FINE),
            vector="model.norm.weight",
        )
    )
    products(Buffer.NORMED, LOGITS, [(head, 0)], Flag.FINE)
    widths = {
        Buffer.HIDDEN: config.hidden_size,
        Buffer.NORMED: config.hidden_size,
        Buffer.HEADS: queries + 2 * keys,
        Buffer.MIXED: queries,
        Buffer.GATES: 2 * config.ffn_size,
        Buffer.GATED: config.ffn_size,
    }
    return Program(
        tuple(code),
        tuple(widths[buffer] for buffer in Buffer),
        max(config.hidden_size, queries, config.ffn_size),
    )


def _has_bias(name: str) -> bool:
    return name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))

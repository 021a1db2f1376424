"""Texts on which tokenizers go wrong, and random ones made of the same stuff."""

from __future__ import annotations

import random

HARD_TEXTS = (
    "",
    " ",
    "  ",
    "a",
    " a",
    "a ",
    "Hello, world!",
    "  leading and trailing   ",
    "tabs\tand\nnew\r\nlines\n\n\n  indented\n\t\tmore",
    "I'll you've we're it's I'M DON'T 'twas l'été",
    "1 12 123 1234 12345 3.14159 1,000,000 ½ ² Ⅷ ٣٤٥ 一二三",
    'def f(x: int) -> str:\n    return f"{x!r:>10}"  # comment\n\n\nclass A(B):\n\tpass\n',
    "for (int i=0;i<n;++i) { a[i] <<= 2; } // <html>&amp;</html>",
    "日本語のテキスト。中文文本，没有空格。한국어 문장입니다.",
    "emoji 😀😃 👨‍👩‍👧‍👦 🏳️‍🌈 flags 🇫🇷🇯🇵 skin 👍🏽",
    "Здравствуй, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم नमस्ते दुनिया",
    "e\u0301 vs é, ﬁ ligature, Ａ fullwidth, \u212b angstrom",
    "zero\u200bwidth\u00a0nbsp\u3000ideographic\u2028line\ufeffbom",
    "control \x00\x01\x07\x1b[31m\x7f\x85 chars",
    "\U0010ffff\ue000\ufffd\ufffe",
    "a" * 300,
    " " * 70 + "x" + " " * 33,
    "\n" * 40 + "\t" * 17,
    "=" * 50 + "-" * 33 + "_" * 9,
    "ABCDefGHIjkl camelCaseWord SCREAMING_SNAKE kebab-case-word",
    "<|im_start|>user\nnot a control token<|im_end|>",
    "<s></s><unk><0x0A><|endoftext|>",
    "▁ meta ▁▁ space",
    "https://example.org/path?query=1&x=%20#frag user@example.com",
)

_PIECES = (
    "the ", "ing", "'s", " ", "  ", "\n", "\t", "\r\n", "0", "42", "é", "e\u0301", "ß", "日", "本語", "한", "😀", "👍🏽", "\u200d", "🇫🇷",
    "Ж", "ع", "न", "_", "--", "==", "(", ")", ".", ",", "A", "bC", "\x00", "\x7f", "\u00a0", "▁", "a", "b", "aa", "<", ">", "|",
)  # fmt: skip


def random_texts(seed: int, count: int, *, longest: int = 40) -> list[str]:
    """Texts of up to ``longest`` pieces each."""
    rng = random.Random(seed)
    return ["".join(rng.choices(_PIECES, k=rng.randint(1, longest))) for _ in range(count)]

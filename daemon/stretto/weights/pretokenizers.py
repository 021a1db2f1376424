"""How text is cut before byte-level BPE, by the name that GGUF files give in ``tokenizer.ggml.pre``.

A GGUF file names the rule instead of carrying it. The names are those of llama.cpp's converter
(``convert_hf_to_gguf.py``); the patterns are the ones in the ``tokenizer.json`` of the models that the names stand for:
GPT-2's contraction-aware split; SmolLM's and StarCoder's (digits one by one, then GPT-2's); Llama 3's (digits by three);
Qwen 2's (digits one by one, after NFC); Mistral's Tekken (upper and lower case apart); and ``default``, llama.cpp's rule
for files whose converter did not know better.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One way of cutting text.

    Attributes:
        patterns: regular expressions (Oniguruma), applied one after the other; matches become pieces of their own.
        nfc: text is put into normal form C first.
        whole_words: a piece that is a token is taken whole, whatever the merges say (``ignore_merges``).
        add_bos: BOS is wanted when the file does not say.
    """

    patterns: tuple[str, ...]
    nfc: bool = False
    whole_words: bool = False
    add_bos: bool = False

    def build(self) -> PreTokenizer:
        """The pre-tokenizer: the cuts, then bytes as GPT-2's characters."""
        cuts: list[PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns
        ]
        return pre_tokenizers.Sequence(
            [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )


_DIGITS = Rule((r"\p{N}", _GPT2))
_LLAMA = Rule((_LLAMA3,), whole_words=True, add_bos=True)
_QWEN = Rule((_QWEN2,), nfc=True)

RULES: dict[str, Rule] = {
    "gpt-2": Rule((_GPT2,)),
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "codeshell": _DIGITS,
    "llama-bpe": _LLAMA,
    "llama3": _LLAMA,
    "llama-v3": _LLAMA,
    "falcon3": _LLAMA,
    "smaug-bpe": Rule((_LLAMA3,)),
    "dbrx": Rule((_LLAMA3,)),
    "qwen2": _QWEN,
    "deepseek-r1-qwen": _QWEN,
    "megrez": _QWEN,
    "tekken": Rule((_TEKKEN,), whole_words=True, add_bos=True),
    "default": Rule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
}
"""Every rule that is known, by name."""

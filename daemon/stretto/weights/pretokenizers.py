"""How text is cut before byte-level BPE, by the name that GGUF files give in ``tokenizer.ggml.pre``.

A GGUF file names the rule instead of carrying it. The names are those of llama.cpp's converter
(``convert_hf_to_gguf.py``); the patterns are the ones in the ``tokenizer.json`` of the models that the names stand for.
``default`` is llama.cpp's rule for files whose converter did not know better. Text is put into normal form C where those models
do so, which GGUF files do not say either. Names of models that do not write text (embedders) are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _chars(ranges: str) -> str:
    """A class of characters from hexadecimal code points and ranges of them, at least once."""
    parts = (part.split("-") for part in ranges.split())
    return "[" + "".join("-".join(f"\\x{{{number}}}" for number in part) for part in parts) + "]+"


def _words(digits: str, *, contractions: str = _CONTRACTIONS + "|", end: str = "[\r\n]*") -> str:
    """Llama 3's and Qwen 2's family: one character before a word, digits as told, signs with the line's end."""
    return rf"{contractions}[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+{end}|{_SPACES}"


def _cased(digits: str, contractions: str, *, end: str = "[\r\n/]*", but: str = "") -> str:
    """GPT-4o's and Tekken's family: as above, but a capital begins a new word. ``but``: letters that are not meant."""
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]"
    first = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{first}{upper}*{lower}+{contractions}|{first}{upper}+{lower}*{contractions}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+{end}|{_SPACES}"


_THREE, _ONE = r"\p{N}{1,3}", r"\p{N}"
_LLAMA3, _QWEN2 = _words(_THREE), _words(_ONE)
_GPT4O = _cased(_THREE, _CONTRACTIONS + "?")
_QWEN35 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_KIMI = r"[\p{Han}]+|" + _cased(_THREE, _CONTRACTIONS + "?", end="[\r\n]*", but=r"&&[^\p{Han}]")
_BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
_CJK = _chars("4E00-9FA5 3040-309F 30A0-30FF")
_SIGNED_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"""| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"""
)
_LATIN_TO_ADLAM = _chars(
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C "
    "38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B "
    "1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 "
    "1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 "
    "2115 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B "
    "2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 "
    "FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF "
    "1E900-1E943 "
)
_DEEPSEEK_SIGNS = _chars("21-2F 3A-7E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002")
_DEEPSEEK_CJK = _chars("4E00-9FA5 800-4E00 AC00-D7FF")

_EXAONE_MOE = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_JAIS2 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|"
    + "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
    + r"|\s{1}"
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


def _named(rule: Rule, *names: str) -> dict[str, Rule]:
    return dict.fromkeys(names, rule)


RULES: dict[str, Rule] = {
    "default": Rule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **_named(Rule((_GPT2,)), "gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4", "jais", "trillion", "granite-docling"),
    **_named(Rule((_GPT2,), nfc=True), "mpt", "olmo"),
    **_named(Rule((_ONE, _GPT2)), "smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"),
    **_named(Rule((_ONE, _GPT2), nfc=True), "command-r"),
    **_named(
        Rule((_LLAMA3,), whole_words=True, add_bos=True),
        "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    ),
    **_named(Rule((_LLAMA3,)), "smaug-bpe", "dbrx", "glm4", "chatglm-bpe"),
    **_named(Rule((_QWEN2,), nfc=True), "qwen2", "deepseek-r1-qwen", "megrez", "f2llmv2"),
    **_named(Rule((_QWEN2,)), "kormo", "stablelm2", "hunyuan", "solar-open", "grok-2"),
    **_named(Rule((_QWEN35,), nfc=True), "qwen35"),
    **_named(Rule((_words(_ONE, contractions=""),)), "ufakzeka"),
    **_named(Rule((_cased(_ONE, ""),), whole_words=True, add_bos=True), "tekken"),
    **_named(Rule((_GPT4O,), whole_words=True), "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
    **_named(Rule((_KIMI,), whole_words=True), "kimi-k2"),
    **_named(Rule((r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)), "tiny_aya", "cohere2moe"),
    **_named(Rule((_THREE, _words(r"\p{N}+")), whole_words=True), "minicpm5"),
    **_named(
        Rule(("[\r\n]", rf"\s?{_LATIN_TO_ADLAM}", rf"\s?{_DEEPSEEK_SIGNS}", r"\s+$", _DEEPSEEK_CJK, _ONE)),
        "deepseek-llm",
    ),
    **_named(Rule(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, _ONE)), "deepseek-coder"),
    **_named(Rule((_THREE, _CJK, _SIGNED_WORDS)), "deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"),
    **_named(Rule((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")), "falcon"),
    **_named(Rule((_BLOOM,)), "bloom", "poro-chat", "gpt3-finnish"),
    **_named(Rule((_BLOOM, _ONE)), "viking"),
    **_named(
        Rule((r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",)),
        "bailingmoe", "bailingmoe2", "llada-moe",
    ),
    **_named(
        Rule((rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",)), "seed-coder"
    ),
    **_named(Rule((_EXAONE_MOE,)), "exaone-moe"),
    **_named(Rule((_JAIS2,)), "jais-2"),
}  # fmt: skip
"""Every rule that is known, by name."""

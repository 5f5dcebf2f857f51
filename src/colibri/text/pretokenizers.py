# ruff: noqa: RUF001 (letters of other scripts are meant)
"""How text is cut into words before byte-pair merging, by the name that `tokenizer.ggml.pre` gives.

The patterns are those that each model's own tokenizer.json declares, in Oniguruma syntax. Where a table of several
patterns is given they apply in turn, each to the pieces that the ones before left.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from colibri.weights.family import NO_PRE_TOKENIZERS, PreTokenizers

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_HAN_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_HAN_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_SPACES = r"\s+(?!\S)|\s+"
_LINES = r"\s*[\r\n]+|" + _SPACES
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|" + _LINES
_SYMBOLS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _LINES
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + _SPACES
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}"
)


def _cased_words(suffix: str, upper: str = _UPPER, lower: str = _LOWER) -> str:
    """Words split where lower case turns to upper case, as o200k and tekken do."""
    start = r"[^\r\n\p{L}\p{N}]?"
    return f"{start}{upper}*{lower}+{suffix}|{start}{upper}+{lower}*{suffix}"


_GPT4O = rf"{_cased_words(_CONTRACTION + '?')}|\p{{N}}{{1,3}}|{_SYMBOLS_SLASH}"
_TEKKEN = rf"{_cased_words('')}|\p{{N}}|{_SYMBOLS_SLASH}"
_KIMI = rf"[\p{{Han}}]+|{_cased_words(_CONTRACTION + '?', _HAN_UPPER, _HAN_LOWER)}|\p{{N}}{{1,3}}|{_SYMBOLS}"
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|" + _SPACES
)
_SEED_CODER = rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES}"
_EXAONE_MOE = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_SPACES}"
)
_KANA_HAN = "[一-龥\u3040-\u309f\u30a0-\u30ff]+"
_DEEPSEEK_V3 = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|" + _SPACES
)
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ"
    "Ὗ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿ"
    "ﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_CJK = "[一-龥ࠀ-一가-\ud7ff]+"
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_DIGIT_TRIPLES = r"\p{N}{1,3}"


@dataclass(frozen=True)
class PreTokenizer:
    """Patterns applied in turn, and what else the tokenizers of that name have in common."""

    patterns: tuple[str, ...]
    nfc: bool = False  # the tokenizer composes characters first
    ignore_merges: bool = False  # a word that is in the vocabulary is taken whole
    add_bos: bool = False  # unless the file says otherwise

    def splitter(self) -> pre_tokenizers.PreTokenizer:
        """The byte-level pre-tokenizer of the `tokenizers` library."""
        splits: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False) for pattern in self.patterns
        ]
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*splits, byte_level])

    def normalizer(self) -> normalizers.Normalizer | None:
        """Unicode composition, where the original tokenizer has it."""
        return normalizers.NFC() if self.nfc else None


DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))
_FALCON = PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"))
_DEEPSEEK_LLM = PreTokenizer(
    (
        "[\r\n]",
        rf"\s?[{_DEEPSEEK_LETTERS}]+",
        "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
        r"\s+$",
        _CJK,
        r"\p{N}+",
    )
)
_DEEPSEEK_CODER = PreTokenizer(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}"))
_DEEPSEEK_3 = PreTokenizer((_DIGIT_TRIPLES, _KANA_HAN, _DEEPSEEK_V3))
_PLAIN_GPT2 = PreTokenizer((_GPT2,))
_NEOX = PreTokenizer((_GPT2,), nfc=True)
_DIGITS_GPT2 = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA_BPE = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_CL100K = PreTokenizer((_LLAMA3,))
_QWEN = PreTokenizer((_QWEN2,), nfc=True)
_QWEN_PLAIN = PreTokenizer((_QWEN2,))
_O200K = PreTokenizer((_GPT4O,), ignore_merges=True)
_LING = PreTokenizer((_BAILING,))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": DEFAULT,
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0"), _LLAMA_BPE),
    **dict.fromkeys(("lfm2", "jina-v5-nano"), _LLAMA_BPE),
    "minicpm5": PreTokenizer((_DIGIT_TRIPLES, rf"{_CONTRACTION}|{_WORD}|\p{{N}}+|{_SYMBOLS}"), ignore_merges=True),
    "deepseek-llm": _DEEPSEEK_LLM,
    "deepseek-coder": _DEEPSEEK_CODER,
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK_3),
    "falcon": _FALCON,
    **dict.fromkeys(("gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "gigachat"), _PLAIN_GPT2),
    **dict.fromkeys(("a.x-4.0", "mellum", "exaone4", "jais", "trillion", "granite-docling"), _PLAIN_GPT2),
    **dict.fromkeys(("mpt", "olmo", "modern-bert"), _NEOX),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone"), _DIGITS_GPT2),
    **dict.fromkeys(("minerva-7b", "mellum2"), _DIGITS_GPT2),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "kormo", "f2llmv2"), _QWEN),
    **dict.fromkeys(("stablelm2", "hunyuan", "solar-open", "grok-2"), _QWEN_PLAIN),
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), _CL100K),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie"), _O200K),
    "minimax-m2": PreTokenizer((_GPT4O,)),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    "kimi-k2": PreTokenizer((_KIMI,)),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _LING),
    "seed-coder": PreTokenizer((_SEED_CODER,)),
    "exaone-moe": PreTokenizer((_EXAONE_MOE,)),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), PreTokenizer((_BLOOM,))),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
}

def choose(
    name: str | None, architecture: str, expected: PreTokenizers = NO_PRE_TOKENIZERS
) -> tuple[PreTokenizer, str | None]:
    """The pre-tokenizer of that name (obeyed as declared) and, where it looks wrong, a sentence that says so."""
    names = expected.names
    usual = f"; {architecture} checkpoints use {' or '.join(sorted(names))}" if names else ""
    advice = (
        "The text may be split differently from how the model was trained: convert the checkpoint "
        "again, and with --pre-tokenizer NAME where that gives the same label."
    )
    if name is None:
        return DEFAULT, f"tokenizer.ggml.pre is missing, taking 'default'{usual}. {advice}"
    if name not in PRE_TOKENIZERS:
        return DEFAULT, f"tokenizer.ggml.pre is {name!r}, which is not known, taking 'default'{usual}. {advice}"
    # A fine-tune may bring a tokenizer of its own, so only the label that means 'nobody knew' is suspect.
    if name == "default" and names:
        return DEFAULT, f"tokenizer.ggml.pre is 'default'{usual}. {advice}"
    if names and name not in names and not expected.others:
        return PRE_TOKENIZERS[name], f"tokenizer.ggml.pre is {name!r}{usual}. {advice}"
    return PRE_TOKENIZERS[name], None

r"""What classes of transformers make of a tokenizer.json, for those that take it as it is.

Versions differ. Up to 4, a class reads the tokenizer from the file, and some replace its post-processor; from 5 on,
most classes take only the vocabulary and build the rest. A class is listed here if both give the same result, because
the file has exactly the settings that the class would build.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Settings = Mapping[str, Any]

_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerClass:
    """A class of transformers."""

    model_types: frozenset[str]
    """Models whose tokenizer it is; a config.json of another model may lead to another class."""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """Special tokens if the configuration does not name them."""
    settings: Callable[[Settings], Settings] | None = None
    """What it builds, given a tokenizer_config.json, in the form of `Content.settings`; None if it builds nothing."""
    adds: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """Names of the special tokens that it adds before and after every text by default; for None, see the file."""


def _byte_level(config: Settings) -> Settings:
    return {
        "normalizer": None,
        "pre_tokenizer": _byte_level_words(add_prefix_space=bool(config.get("add_prefix_space")), use_regex=True),
        "decoder": "ByteLevel",
        "model": _bpe(),
    }


def _qwen2(config: Settings) -> Settings:
    words = {"type": "Split", "pattern": {"Regex": _QWEN2_WORDS}, "behavior": "Isolated", "invert": False}
    spaces = _byte_level_words(add_prefix_space=bool(config.get("add_prefix_space")), use_regex=False)
    return {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [words, spaces]},
        "decoder": "ByteLevel",
        "model": _bpe(),
    }


def _gemma(config: Settings) -> Settings:
    parts = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    return {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "decoder": {"type": "Sequence", "decoders": parts},
        "model": _bpe(unk_token=config.get("unk_token", "<unk>"), fuse_unk=True, byte_fallback=True),
    }


def _bert(config: Settings) -> Settings:
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
            "strip_accents": config.get("strip_accents"),
            "lowercase": config.get("do_lower_case", True),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": config.get("unk_token", "[UNK]"),
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
    }


def _bpe(*, unk_token: str | None = None, fuse_unk: bool = False, byte_fallback: bool = False) -> Settings:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unk_token,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": fuse_unk,
        "byte_fallback": byte_fallback,
        "ignore_merges": False,
    }


def _byte_level_words(*, add_prefix_space: bool, use_regex: bool) -> Settings:
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "use_regex": use_regex}


_GENERIC = TokenizerClass(
    model_types=frozenset(
        {
            *("llama", "llama4", "gpt_oss", "deepseek_v2", "deepseek_v3", "glm", "glm4", "glm4_moe", "granite"),
            *("granitemoe", "granitemoehybrid", "olmo2", "olmo3", "smollm3", "nemotron", "stablelm", "gpt_neox"),
        }
    ),
)

CLASSES: Mapping[str, TokenizerClass] = {
    "PreTrainedTokenizer": _GENERIC,  # the name without "Fast"
    "TokenizersBackend": _GENERIC,
    "GPT2Tokenizer": TokenizerClass(
        model_types=frozenset({"gpt2", "gpt_neo", "gptj", "opt", "phi", "starcoder2"}),
        special_tokens=dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"),
        settings=_byte_level,
    ),
    "Qwen2Tokenizer": TokenizerClass(
        model_types=frozenset({"qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"}),
        special_tokens=dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>"),
        settings=_qwen2,
    ),
    "GemmaTokenizer": TokenizerClass(
        model_types=frozenset({"gemma", "gemma2", "gemma3", "gemma3_text"}),
        special_tokens={
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "unk_token": "<unk>",
            "pad_token": "<pad>",
            "mask_token": "<mask>",
        },
        settings=_gemma,
        adds=(("bos_token",), ()),
    ),
    "BertTokenizer": TokenizerClass(
        model_types=frozenset({"bert", "distilbert", "electra", "mobilebert"}),
        special_tokens={
            "unk_token": "[UNK]",
            "sep_token": "[SEP]",
            "pad_token": "[PAD]",
            "cls_token": "[CLS]",
            "mask_token": "[MASK]",
        },
        settings=_bert,
        adds=(("cls_token",), ("sep_token",)),
    ),
}
"""Classes by `tokenizer_class` of a tokenizer_config.json, without "Fast" at the end."""

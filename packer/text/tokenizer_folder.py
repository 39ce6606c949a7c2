"""Tokenizers that can be opened from their files alone, without transformers, which takes seconds to import.

`open_complete` returns what `AutoTokenizer` would, or None if it finds anything unknown: a key, a class, a kind of
model, or a special token that is not in the file. transformers then opens the tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from packer.text.tokenizer import Tokenizer, of_rust
from packer.text.tokenizer_content import Content

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer

GENERATION_CONFIG = "generation_config.json"
"""File of a model that names the tokens at which it stops."""

FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json"),
    *("chat_template.jinja", "additional_chat_templates/*.jinja", "tekken.json", GENERATION_CONFIG),
)
"""Files that are read, or looked for."""

_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_KNOWN = {
    *_NAMES,
    *_LISTS,
    *("add_bos_token", "add_eos_token", "add_prefix_space", "added_tokens_decoder", "backend", "chat_template"),
    *("clean_up_tokenization_spaces", "do_basic_tokenize", "do_lower_case", "errors", "is_local", "legacy"),
    *("local_files_only", "max_length", "model_input_names", "model_max_length", "name_or_path", "never_split"),
    *("pad_to_multiple_of", "pad_token_type_id", "padding_side", "processor_class", "sp_model_kwargs"),
    *("spaces_between_special_tokens", "split_special_tokens", "stride", "strip_accents", "tokenize_chinese_chars"),
    *("tokenizer_class", "truncation_side", "truncation_strategy", "use_default_system_prompt"),
}
"""Keys of a tokenizer_config.json that are taken into account below, or do not affect tokens."""


class _Config(NamedTuple):
    """Content of the files that come with a tokenizer.json."""

    values: dict[str, Any]
    """Content of tokenizer_config.json; in older tokenizers, special tokens in another file take precedence."""
    kind: TokenizerClass
    """The class that it names."""
    chat_template: Any
    """As in transformers: files take precedence over tokenizer_config.json, and several templates are a dictionary."""
    added_ids: Mapping[str, Any]
    """Content of added_tokens.json, which older tokenizers have."""


def open_complete(folder: Path, name: str) -> Tokenizer | None:
    """Open a tokenizer by its files alone.

    Args:
        folder: folder with the files.
        name: path or Hub id of the tokenizer, for messages.

    Returns:
        None if its files do not suffice, or cannot be read.
    """
    try:
        config = _read_config(folder)
        text = (folder / "tokenizer.json").read_text(encoding="utf-8") if config is not None else ""
    except (OSError, ValueError):
        return None
    backend = _parsed(text) if config is not None else None
    if config is None or backend is None:
        return None
    special = _special_tokens(config, backend.padding)
    if special is None:
        return None
    opened = of_rust(backend, name=name, special_tokens=special, chat_template=config.chat_template)
    assert opened.content is not None
    is_complete = (
        _keeps_settings(config, special, opened.content.settings)
        and _keeps_added_tokens(config, special, opened.content, text)
        and _keeps_ends(config, special, backend)
    )
    return opened if is_complete else None


def _read_config(folder: Path) -> _Config | None:
    """Read all files except the tokenizer itself; None if one holds something unknown.

    Raises:
        OSError: the configuration cannot be read.
        ValueError: a file is not JSON, or not text.
    """
    values = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    older, added, model = (
        json.loads(path.read_text(encoding="utf-8")) if (path := folder / name).is_file() else None
        for name in ("special_tokens_map.json", "added_tokens.json", "config.json")
    )
    if not all(isinstance(one, dict | None) for one in (older, added, model)) or not isinstance(values, dict):
        return None
    if "added_tokens_decoder" not in values:
        values |= older or {}
    else:
        added = None
    name = values.get("tokenizer_class")
    kind = CLASSES.get(name.removesuffix("Fast")) if isinstance(name, str) else None
    is_known = (
        kind is not None
        and values.keys() <= _KNOWN
        and (model is None or model.get("model_type") in kind.model_types)
        and not values.get("split_special_tokens")
        and not (folder / "tekken.json").exists()
    )
    template = _chat_template(folder, values.get("chat_template"))
    if not is_known or kind is None or isinstance(template, list):
        return None
    return _Config(values, kind, template, added or {})


def _chat_template(folder: Path, configured: Any) -> Any:
    """Return the chat templates; as a list only if transformers would not accept it."""
    found = {}
    if (folder / "chat_template.jinja").is_file():
        found["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = path.read_text(encoding="utf-8")
    if found:
        return found["default"] if found.keys() == {"default"} else found
    if isinstance(configured, list) and all(
        isinstance(one, dict) and isinstance(one.get("name"), str) and "template" in one for one in configured
    ):
        return {one["name"]: one["template"] for one in configured}
    return configured


def _parsed(text: str) -> RustTokenizer | None:
    from tokenizers import Tokenizer as RustTokenizer

    try:
        return RustTokenizer.from_str(text)
    except Exception:  # tokenizers raises plain Exception
        return None


def _special_tokens(config: _Config, padding: Any) -> dict[str, str] | None:
    """Return special tokens by name; None if one is not a token."""
    values = {**config.kind.special_tokens, **config.values}
    if padding is not None:
        values.setdefault("pad_token", padding["pad_token"])
    named = {name: _text_of(values[name]) for name in _NAMES if values.get(name) is not None}
    return {name: token for name, token in named.items() if token} if all(named.values()) else None


def _text_of(token: Any) -> str | None:
    """Return the text of a special token, which is written as a string or an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _keeps_settings(config: _Config, special: Mapping[str, str], settings: Mapping[str, Any]) -> bool:
    """Whether the class leaves normalizer, pre-tokenizer, model and decoder as they are."""
    values, words, decoder = config.values, settings["pre_tokenizer"], settings["decoder"]
    if values.get("clean_up_tokenization_spaces") and settings["model"]["type"] != "BPE":
        return False  # decodes otherwise
    if config.kind.settings is None:
        adds_space = words.get("add_prefix_space") if isinstance(words, dict) else None
        return adds_space in (None, bool(values.get("add_prefix_space")))
    if isinstance(decoder, dict) and decoder["type"] == "ByteLevel":
        decoder = "ByteLevel"  # all of them do the same
    built = config.kind.settings({**values, **special})
    return built == {name: settings[name] for name in built} | {"decoder": decoder}


def _keeps_added_tokens(config: _Config, special: Mapping[str, str], content: Content, text: str) -> bool:
    """Whether all files agree on the tokens that are added to the vocabulary, and special tokens are among them."""
    tokens = content.settings["added_tokens"]
    if _written_tokens(text) != tokens:
        return False
    by_id = {str(token["id"]): {name: value for name, value in token.items() if name != "id"} for token in tokens}
    configured = config.values.get("added_tokens_decoder", by_id)
    if not isinstance(configured, dict) or not configured.items() <= by_id.items():
        return False
    if len(configured) < len(by_id) and config.kind.settings is not None:
        return False  # a class that builds the tokenizer would lose the others
    ids = {token["content"]: token["id"] for token in tokens}
    if not config.added_ids.items() <= ids.items():
        return False
    listed: list[Any] = [*special.values()]
    for name in _LISTS:
        more = config.values.get(name) or []
        if not isinstance(more, list):
            return False
        listed += map(_text_of, more)
    return {*listed} <= {token["content"] for token in tokens if token["special"]}


def _written_tokens(text: str) -> Any:
    """Return the added tokens as a tokenizer.json has them, by their numbers; None if that is not clear."""
    name = '"added_tokens":'
    if text.count(name) != 1:
        return None
    start = text.index(name) + len(name)
    start += len(text[start : start + 100]) - len(text[start : start + 100].lstrip())
    try:
        tokens, _ = json.JSONDecoder().raw_decode(text, start)
        return sorted(tokens, key=lambda token: int(token["id"]))
    except (ValueError, TypeError, KeyError):
        return None


def _keeps_ends(config: _Config, special: Mapping[str, str], backend: RustTokenizer) -> bool:
    """Whether the class adds the same tokens to a text as the file."""
    options = {"bos_token": "add_bos_token", "eos_token": "add_eos_token"}
    if config.kind.settings is None and not {*options.values()} & config.values.keys():
        return True
    try:
        whole, plain = backend.encode("a").ids, backend.encode("a", add_special_tokens=False).ids
    except Exception:  # tokenizers raises plain Exception; transformers says what is wrong
        return False
    at = next((at for at in range(len(whole)) if whole[at : at + len(plain)] == plain), 0)
    found = (whole[:at], whole[at + len(plain) :])
    for ids, (name, option), adds in zip(found, options.items(), config.kind.adds, strict=True):
        if option not in config.values and config.kind.settings is None:
            continue
        names = {*adds} - {name} | ({name} if config.values.get(option, name in adds) else set())
        if ids != [backend.token_to_id(special[one]) for one in names if one in special]:
            return False
    return True


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

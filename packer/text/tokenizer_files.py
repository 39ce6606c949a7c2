"""Tokenizers of the generic classes of transformers, opened by their files alone: transformers takes seconds to import.

The generic classes take a tokenizer.json as it is. `open_by_files` returns what `AutoTokenizer` would, or None if it
finds anything else: another class or model, an unknown key, or files that do not agree. transformers then opens the
tokenizer. `class_by_files` names the class that `AutoTokenizer` would take, which imports torch to find it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer.text.tokenizer import Tokenizer, of_rust

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer

GENERATION_CONFIG = "generation_config.json"
"""File of a model that names the tokens at which it stops."""

FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json"),
    *("chat_template.jinja", "additional_chat_templates/*.jinja", "tekken.json", GENERATION_CONFIG),
)
"""Files that are read, or looked for."""

_GENERIC = ("PreTrainedTokenizer", "TokenizersBackend")
_GENERIC_MODELS = {
    *("llama", "llama4", "gpt_oss", "deepseek_v2", "deepseek_v3", "glm", "glm4", "glm4_moe", "granite"),
    *("granitemoe", "granitemoehybrid", "olmo2", "olmo3", "smollm3", "nemotron", "stablelm", "gpt_neox"),
}
_MODELS = {
    **dict.fromkeys(_GENERIC, _GENERIC_MODELS),
    "BertTokenizer": {"bert", "distilbert", "electra", "mobilebert"},
    "GPT2Tokenizer": {"gpt2", "gpt_neo", "gptj", "opt", "phi", "starcoder2"},
    "GemmaTokenizer": {"gemma", "gemma2", "gemma3", "gemma3_text"},
    "Qwen2Tokenizer": {"qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"},
}
"""Models, by a class without "Fast", whose config.json does not lead to another class than the one that is named."""

_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_ADDED = {"bos_token": "add_bos_token", "eos_token": "add_eos_token"}
_KNOWN = {
    *(*_NAMES, *_LISTS, *_ADDED.values()),
    *("add_prefix_space", "added_tokens_decoder", "backend", "chat_template", "clean_up_tokenization_spaces"),
    *("errors", "is_local", "legacy", "local_files_only", "max_length", "model_input_names", "model_max_length"),
    *("name_or_path", "pad_to_multiple_of", "pad_token_type_id", "padding_side", "processor_class", "sp_model_kwargs"),
    *("spaces_between_special_tokens", "split_special_tokens", "stride", "tokenizer_class", "truncation_side"),
    *("truncation_strategy", "use_default_system_prompt"),
}
"""Keys of a tokenizer_config.json that are taken into account below, or do not affect tokens."""


def class_by_files(folder: Path) -> str | None:
    """Return the name of the class of one model that `AutoTokenizer` takes, without "Fast"; None if that is unknown."""
    try:
        named = _class_of(json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")), folder)
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return None
    return None if named in _GENERIC else named


def open_by_files(folder: Path, name: str) -> Tokenizer | None:
    """Open a tokenizer by its files alone.

    Args:
        folder: folder with the files.
        name: path or Hub id of the tokenizer, for messages.

    Returns:
        None if its files do not suffice, or cannot be read.
    """
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        if _class_of(config, folder) not in _GENERIC or not _is_whole(config, folder):
            return None
        template = _chat_template(folder, config.get("chat_template"))
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return None
    backend = _parsed(text)
    special = _special_tokens(config, backend.padding) if backend is not None else None
    if backend is None or special is None or isinstance(template, list):
        return None
    opened = of_rust(backend, name=name, special_tokens=special, chat_template=template)
    assert opened.content is not None
    settings = opened.content.settings
    is_complete = (
        _keeps_words(config, settings)
        and _keeps_added_tokens(config, special, settings["added_tokens"], text)
        and _keeps_ends(config, special, backend)
    )
    return opened if is_complete else None


def _class_of(config: Mapping[str, Any], folder: Path) -> str | None:
    """Return the class that a configuration names, without "Fast", unless code or another model may lead to another."""
    named, model = str(config["tokenizer_class"]).removesuffix("Fast"), folder / "config.json"
    is_its_model = not model.is_file() or json.loads(model.read_text(encoding="utf-8"))["model_type"] in _MODELS[named]
    return named if named in _MODELS and is_its_model and "auto_map" not in config else None


def _is_whole(config: Mapping[str, Any], folder: Path) -> bool:
    """Whether all keys of a configuration are known, and no other file than tokenizer.json says more about tokens."""
    is_older = "added_tokens_decoder" not in config
    others = ("tekken.json", *(("special_tokens_map.json", "added_tokens.json") if is_older else ()))
    is_known = config.keys() <= _KNOWN and not config.get("split_special_tokens")
    return is_known and not any((folder / name).exists() for name in others)


def _chat_template(folder: Path, configured: Any) -> Any:
    """Return the chat template, or several by name; a list only if transformers would not accept it.

    As in transformers, files take precedence over tokenizer_config.json.
    """
    found = {}
    if (folder / "chat_template.jinja").is_file():
        found["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = path.read_text(encoding="utf-8")
    if found:
        return found["default"] if found.keys() == {"default"} else found
    is_named = isinstance(configured, list) and all(map(is_named_template, configured))
    return {one["name"]: one["template"] for one in configured} if is_named else configured


def is_named_template(one: Any) -> bool:
    """Whether an item of a list of chat templates is an object with a name and a template."""
    return isinstance(one, dict) and isinstance(one.get("name"), str) and "template" in one


def _parsed(text: str) -> RustTokenizer | None:
    from tokenizers import Tokenizer as RustTokenizer

    try:
        return RustTokenizer.from_str(text)
    except Exception:  # tokenizers raises plain Exception
        return None


def _special_tokens(config: Mapping[str, Any], padding: Any) -> dict[str, str] | None:
    """Return special tokens by name; None if one is not a token."""
    values = {"pad_token": padding["pad_token"], **config} if padding is not None else config
    named = {name: _text_of(values[name]) for name in _NAMES if values.get(name) is not None}
    return {name: token for name, token in named.items() if token} if all(named.values()) else None


def _text_of(token: Any) -> str | None:
    """Return the text of a special token, which is written as a string or an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _keeps_words(config: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether the configuration leaves pre-tokenizer and decoder as they are."""
    if config.get("clean_up_tokenization_spaces") and settings["model"]["type"] != "BPE":
        return False  # decodes otherwise
    words = settings["pre_tokenizer"]
    adds_space = words.get("add_prefix_space") if isinstance(words, dict) else None
    return adds_space in (None, bool(config.get("add_prefix_space")))


def _keeps_added_tokens(
    config: Mapping[str, Any], special: Mapping[str, str], tokens: list[dict[str, Any]], text: str
) -> bool:
    """Whether all files agree on the tokens that are added to the vocabulary, and special tokens are among them."""
    if _written_tokens(text) != tokens:
        return False
    by_id = {str(token["id"]): {name: value for name, value in token.items() if name != "id"} for token in tokens}
    configured = config.get("added_tokens_decoder", by_id)
    lists = [config.get(name) or [] for name in _LISTS]
    if not (isinstance(configured, dict) and configured.items() <= by_id.items()):
        return False
    if not all(isinstance(one, list) for one in lists):
        return False
    named = {*special.values(), *(_text_of(token) for one in lists for token in one)}
    return named <= {token["content"] for token in tokens if token["special"]}


def _written_tokens(text: str) -> Any:
    """Return the added tokens as a tokenizer.json has them, by their numbers; None if that is not clear."""
    _, *rest = text.split('"added_tokens":')
    if len(rest) != 1:
        return None
    try:
        tokens, _ = json.JSONDecoder().raw_decode(rest[0].lstrip())
        return sorted(tokens, key=lambda token: int(token["id"]))
    except (ValueError, TypeError, KeyError):
        return None


def _keeps_ends(config: Mapping[str, Any], special: Mapping[str, str], backend: RustTokenizer) -> bool:
    """Whether tokenizer.json adds the tokens before and after a text that the configuration says, if it does."""
    if not {*_ADDED.values()} & config.keys():
        return True
    try:
        whole, plain = backend.encode("a").ids, backend.encode("a", add_special_tokens=False).ids
    except Exception:  # tokenizers raises plain Exception; transformers says what is wrong
        return False
    at = next((at for at in range(len(whole)) if whole[at : at + len(plain)] == plain), 0)
    for ids, (name, option) in zip((whole[:at], whole[at + len(plain) :]), _ADDED.items(), strict=True):
        expected = [backend.token_to_id(special[name])] if config.get(option) and name in special else []
        if option in config and ids != expected:
            return False
    return True

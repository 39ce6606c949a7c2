"""Open tokenizers by path or Hub id: text to tokens and back, special tokens and chat templates.

transformers takes a second to import. Its generic classes only wrap a tokenizer.json. Some classes of models replace
parts of it, usually by the same parts. Such tokenizers are opened without transformers, with the same result as
`AutoTokenizer`, if all keys in their files are known and consistent. If the files name another class of one model, that
class opens the tokenizer. Everything else is left to `AutoTokenizer`, which imports torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from packer.errors import PackerError, first_line, hub_is_unreachable, shortage
from packer.progress import STATUS
from packer.stores.paths import expanded

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer
    from transformers import PreTrainedTokenizerBase

END_OF_TEXT = "<|endoftext|>"
"""Token that ends a text in `train_byte_level`."""

PROBES = ("a", "Hello, world!\n", "  Two  spaces \u00e9\u4e2d\U0001f600 42")
"""Texts on which tokenizers are compared."""

_OTHER = ("version", "truncation", "padding", "post_processor")

_GENERATION_CONFIG = "generation_config.json"
"""File of a model that names the tokens at which it stops."""

_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json"),
    *("chat_template.jinja", "additional_chat_templates/*.jinja", "tekken.json", _GENERATION_CONFIG),
)
"""Files of a tokenizer to read, or to check for."""

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
"""Tokenizer class, without "Fast" -> model types for which `AutoTokenizer` uses the named class."""

_WORDS_OF_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLIT = {"type": "Split", "pattern": {"Regex": _WORDS_OF_QWEN2}, "behavior": "Isolated", "invert": False}
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
_PARTS: dict[str, dict[str, Any]] = {
    "GPT2Tokenizer": {"normalizer": None, "pre_tokenizer": {**_BYTES, "use_regex": True}},
    "Qwen2Tokenizer": {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [_SPLIT, _BYTES]},
    },
}
"""Parts with which a class replaces those of a tokenizer.json. The decoder is byte-level, and the model plain BPE."""

_DEFAULTS = {"bos_token", "eos_token", "pad_token", "unk_token"}
"""Special tokens that these classes set if a configuration does not name them."""

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
"""Keys of a tokenizer_config.json that are handled below, or do not affect tokens."""

_TIMEOUT = 10  # seconds within which the Hub must answer
_NO_ADVICE = "TRANSFORMERS_NO_ADVISORY_WARNINGS"  # silences `warning_advice` and nothing else


class TokenizerContent(NamedTuple):
    """Everything that determines the tokens of a text in a Rust tokenizer, except the tokens added around them."""

    settings: dict[str, Any]
    """`added_tokens`, `normalizer`, `pre_tokenizer`, `decoder` and `model` of a tokenizer.json, normalized; the model
    without its vocabulary."""
    vocabulary: str
    """xxh3-128, hexadecimal, of the vocabulary and everything after it in a tokenizer.json, such as merges."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenizer:
    """A tokenizer of the `tokenizers` library, with its configuration."""

    name: str
    """Path or Hub id, for messages."""
    backend: RustTokenizer
    content: TokenizerContent
    special_tokens: Mapping[str, str]
    """Special tokens by name, such as `eos_token`; chat templates read them by these names."""
    chat_template: Any = None
    """Unchecked chat template, or several by name; None without one."""
    by_transformers: bool = False
    """Whether transformers opened it."""
    generation_ends: tuple[int, ...] = ()
    """Tokens at which the model stops, from its generation_config.json; () without this file."""

    @property
    def ends(self) -> tuple[str, ...]:
        """Texts of the tokens at which the model stops: the end-of-sequence token and `generation_ends`."""
        added = self.backend.get_added_tokens_decoder()
        found = [
            self.special_tokens.get("eos_token"),
            *(added[at].content for at in self.generation_ends if at in added),
        ]
        return tuple(sorted({text for text in found if text}))

    @property
    def special_texts(self) -> tuple[str, ...]:
        """Texts of all special tokens, named or not."""
        added = (token.content for token in self.backend.get_added_tokens_decoder().values() if token.special)
        return tuple({*self.special_tokens.values(), *added})

    def has_token(self, token: str) -> bool:
        """Whether a text is a token of the vocabulary."""
        return self.backend.token_to_id(token) is not None

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, including special tokens."""
        return str(self.backend.decode([int(token) for token in ids], skip_special_tokens=False))

    def id_of(self, name: str) -> int | None:
        """Return the id of a special token by name, such as "eos_token"; None if there is none."""
        return self.backend.token_to_id(self.special_tokens[name]) if name in self.special_tokens else None


def open_tokenizer(path_or_id: str) -> Tokenizer:
    """Open a tokenizer by path (a folder or tokenizer.json) or Hub id.

    A tokenizer.json next to a tokenizer_config.json is opened like its folder, because only the configuration names the
    end-of-sequence token and the chat template. Code that comes with a tokenizer (`auto_map`) is never run. Raises a
    PackerError if the tokenizer does not exist, or needs its own code.
    """
    path_or_id = expanded(path_or_id)
    path = Path(path_or_id)
    STATUS.info("loading the tokenizer")
    opened, folder = _open(path_or_id, path)
    return opened if folder is None else replace(opened, generation_ends=_generation_ends(folder))


def _open(path_or_id: str, path: Path) -> tuple[Tokenizer, Path | None]:
    """Open a tokenizer. Returns it with the folder of its files, or None if the folder is unknown."""
    if path.is_file() and not path.with_name("tokenizer_config.json").is_file():
        return _open_alone(path), path.parent
    folder_or_id = str(path.parent) if path.is_file() else path_or_id
    try:
        folder = Path(folder_or_id) if path.exists() else _download(path_or_id)
        named = _class_by_files(folder) if folder is not None else None
        if folder is not None and named in (*_GENERIC, *_PARTS):
            complete = _open_by_files(folder, folder_or_id, named)
            if complete is not None:
                return complete, folder
            named = None if named in _GENERIC else named
        transformers = _transformers()
        opens = getattr(transformers, f"{named}Fast", None) or getattr(transformers, named or "AutoTokenizer")
        # With None, the default, transformers asks on stdin whether to run code that comes with the tokenizer
        return of_transformers(opens.from_pretrained(folder_or_id, trust_remote_code=False)), folder
    except BaseException as error:  # HTTP libraries raise different exceptions, depending on their versions
        if not is_refusal(error):
            raise
        if "trust_remote_code" in str(error):
            raise PackerError(
                f"{path_or_id} comes with its own code (auto_map), which packer does not run: if its tokenizer.json "
                "does without that code, remove auto_map from tokenizer_config.json and config.json in a copy of it"
            ) from error
        raise PackerError(f"{path_or_id} {_fault(path, error)}") from error


def _generation_ends(folder: Path) -> tuple[int, ...]:
    """Return the tokens at which a model stops, one or several in generation_config.json; () if not named."""
    path = folder / _GENERATION_CONFIG
    try:
        ends = json.loads(path.read_bytes()).get("eos_token_id") if path.is_file() else None
        listed = ends if isinstance(ends, list) else [] if ends is None else [ends]
        if all(type(token) is int and token >= 0 for token in listed):
            return tuple(listed)
        reason = f"eos_token_id is {str(ends)[:60]} where a token id or a list of them is expected"
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        reason = first_line(error)
    raise PackerError(f"{path} does not say which tokens end a turn: {reason}; fix or remove it")


def _fault(path: Path, error: BaseException) -> str:
    """Return why a tokenizer was not found (in a folder, the download cache or on the Hub), and the remedy."""
    from huggingface_hub import constants

    reason = shorten(str(error), 200, placeholder=" ...") or type(error).__name__
    if path.is_dir() and not any((path / name).is_file() for name in _FILES):
        return "has no files of a tokenizer, such as tokenizer.json: name a folder that has"
    if path.exists():
        return f"cannot be opened as a tokenizer ({reason}): name a folder with a tokenizer.json, or save it again"
    if constants.HF_HUB_OFFLINE and type(error).__name__ != "HFValidationError":
        return f"is not a local path, nor was it downloaded before HF_HUB_OFFLINE was set ({reason}): check the path"
    if hub_is_unreachable(error):
        remedy = "download it where there is a network, and give its folder"
        return f"is not a local path, and the Hugging Face Hub cannot be reached ({reason}): {remedy}"
    if type(error).__name__ == "HFValidationError":  # its message does not help: it is about names of repositories
        return "is no file, no folder, and no Hub id like org/name: check the path"
    return f"is neither a tokenizer folder or tokenizer.json nor a Hub id ({reason}): check the path"


def is_refusal(error: BaseException) -> bool:
    """Whether a tokenizer raised this. It raises plain Exception or, if Rust panics, a BaseException."""
    if isinstance(error, PackerError):
        return False
    is_known = isinstance(error, Exception) or type(error).__name__ == "PanicException"
    return is_known and shortage(error) is None


def open_decoder(path_or_id: str) -> Callable[[Any], str]:
    """Open a tokenizer as `open_tokenizer` does, and return the function that decodes token ids."""
    path = Path(expanded(path_or_id))
    return _open_alone(path).decode if path.is_file() else open_tokenizer(path_or_id).decode


def _open_json(path: Path) -> RustTokenizer:
    """Open a tokenizer.json with the library, which raises plain `Exception`."""
    from tokenizers import Tokenizer as Rust

    return Rust.from_file(str(path))


def _open_alone(path: Path) -> Tokenizer:
    """Open a tokenizer.json without a configuration."""
    try:
        backend = _open_json(path)
    except BaseException as error:
        if not is_refusal(error):
            raise
        raise PackerError(f"{path} is not a tokenizer.json: {error}") from error
    special = {"pad_token": str(backend.padding["pad_token"])} if backend.padding is not None else {}
    return of_rust(backend, name=str(path), special_tokens=special, chat_template=None)


def _transformers() -> Any:
    """Import transformers without its warning that torch is missing; tokenizers do not need torch."""
    usual = os.environ.get(_NO_ADVICE)
    os.environ[_NO_ADVICE] = "1"
    try:
        import transformers
    finally:
        if usual is None:
            del os.environ[_NO_ADVICE]
        else:
            os.environ[_NO_ADVICE] = usual
    return transformers


def _download(hub_id: str) -> Path | None:
    """Download the `_FILES` of a tokenizer from the Hub. Returns their folder, or None if transformers must try.

    First asks whether the Hub answers and has the tokenizer: transformers would retry for half a minute.
    """
    from huggingface_hub import HfApi, constants, snapshot_download, try_to_load_from_cache

    if not constants.HF_HUB_OFFLINE and try_to_load_from_cache(hub_id, "tokenizer_config.json") is None:
        HfApi().model_info(hub_id, timeout=_TIMEOUT)
    try:
        return Path(snapshot_download(hub_id, allow_patterns=[*_FILES], etag_timeout=_TIMEOUT))
    except Exception:  # transformers reports why it fails
        return None


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _class_by_files(folder: Path) -> str | None:
    """Return the class in a configuration, without "Fast"; None if code or the model type may select another class."""
    model = folder / "config.json"
    try:
        config = _read_json(folder / "tokenizer_config.json")
        named = str(config["tokenizer_class"]).removesuffix("Fast")
        is_its_model = not model.is_file() or _read_json(model)["model_type"] in _MODELS[named]
        return named if named in _MODELS and is_its_model and "auto_map" not in config else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _open_by_files(folder: Path, name: str, class_name: str) -> Tokenizer | None:
    """Open a tokenizer from its files alone. Returns None if its class may change them, or they are unreadable."""
    try:
        config = _read_json(folder / "tokenizer_config.json")
        if not _is_whole(config, folder):
            return None
        template = _chat_template(folder, config.get("chat_template"))
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        backend = _open_json(folder / "tokenizer.json")
        padding = {} if backend.padding is None else {"pad_token": backend.padding["pad_token"]}
        named = {**padding, **config}
        special = {name: _text_of(named[name]) for name in _NAMES if named.get(name) is not None}
        opened = of_rust(backend, name=name, special_tokens=special, chat_template=template)
        settings = opened.content.settings
        suffices = (
            not isinstance(template, list)
            and (class_name in _GENERIC or _has_parts(settings, class_name, config))
            and _keeps_words(config, settings)
            and _keeps_added_tokens(config, special, settings["added_tokens"], text)
            and _keeps_ends(config, special, backend)
        )
        return opened if suffices else None
    except BaseException as error:  # files may hold anything; transformers reports the fault
        if not is_refusal(error):
            raise
        return None


def _is_whole(config: Mapping[str, Any], folder: Path) -> bool:
    """Whether all keys of a configuration are known, and no file but tokenizer.json defines tokens."""
    is_older = "added_tokens_decoder" not in config
    others = ("tekken.json", *(("special_tokens_map.json", "added_tokens.json") if is_older else ()))
    is_known = config.keys() <= _KNOWN and not config.get("split_special_tokens")
    return is_known and not any((folder / name).exists() for name in others)


def _chat_template(folder: Path, configured: Any) -> Any:
    """Return the chat template, or several by name. Returns a list only if transformers would not accept it.

    As in transformers, files take precedence over tokenizer_config.json.
    """
    found = {}
    if (folder / "chat_template.jinja").is_file():
        found["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = path.read_text(encoding="utf-8")
    if found:
        return found["default"] if found.keys() == {"default"} else found
    is_named = isinstance(configured, list) and all(
        isinstance(one, dict) and isinstance(one.get("name"), str) and "template" in one for one in configured
    )
    return {one["name"]: one["template"] for one in configured} if is_named else configured


def _text_of(token: Any) -> str:
    """Return the text of a special token, given as a string or an object."""
    text = token["content"] if isinstance(token, dict) else token
    if not (isinstance(text, str) and text):
        raise ValueError(f"{text!r} is not the text of a token")
    return text


def _has_parts(settings: Mapping[str, Any], class_name: str, config: Mapping[str, Any]) -> bool:
    """Whether a class that replaces parts of a tokenizer.json builds the same tokenizer."""
    tokens = settings["added_tokens"]
    flags = ("single_word", "lstrip", "rstrip", "normalized")  # the class may add special tokens again, without flags
    return (
        _PARTS[class_name].items() <= settings.items()
        and settings["decoder"]["type"] == "ByteLevel"  # without effective options
        and [value for value in settings["model"].values() if value] == ["BPE"]
        and config.keys() >= _DEFAULTS
        and not config.get("add_prefix_space")
        and len(config.get("added_tokens_decoder", tokens)) == len(tokens)
        and not any(token[flag] for token in tokens if token["special"] for flag in flags)
    )


def _keeps_words(config: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether the configuration leaves pre-tokenizer and decoder unchanged."""
    if config.get("clean_up_tokenization_spaces") and settings["model"]["type"] != "BPE":
        return False  # this option changes decoding
    words = settings["pre_tokenizer"]
    adds_space = words.get("add_prefix_space") if isinstance(words, dict) else None
    return adds_space in (None, bool(config.get("add_prefix_space")))


def _keeps_added_tokens(
    config: Mapping[str, Any], special: Mapping[str, str], tokens: list[dict[str, Any]], text: str
) -> bool:
    """Whether all files agree on the tokens added to the vocabulary, and these include all special tokens."""
    _, behind = text.split('"added_tokens":')  # occurs once; parsing the file takes as long as loading the tokenizer
    written, _ = json.JSONDecoder().raw_decode(behind.lstrip())
    by_id = {str(token["id"]): {name: value for name, value in token.items() if name != "id"} for token in tokens}
    lists = [config.get(name) or [] for name in _LISTS]
    named = {*special.values(), *(_text_of(token) for one in lists for token in one)}
    return (
        sorted(written, key=lambda token: int(token["id"])) == tokens
        and config.get("added_tokens_decoder", by_id).items() <= by_id.items()
        and all(isinstance(one, list) for one in lists)
        and named <= {token["content"] for token in tokens if token["special"]}
    )


def _keeps_ends(config: Mapping[str, Any], special: Mapping[str, str], backend: RustTokenizer) -> bool:
    """Whether tokenizer.json adds the tokens before and after a text that the configuration names, if any."""
    if not {*_ADDED.values()} & config.keys():
        return True
    added = added_tokens(backend, "a") or (None, None)
    for ids, (name, option) in zip(added, _ADDED.items(), strict=True):
        expected = [backend.token_to_id(special[name])] if config.get(option) and name in special else []
        if option in config and ids != expected:
            return False
    return True


def of_transformers(pretrained: PreTrainedTokenizerBase) -> Tokenizer:
    """Convert a transformers tokenizer.

    Raises a PackerError if it is not backed by Rust, or if its class changes the result of the Rust tokenizer.
    """
    special = pretrained.special_tokens_map.items()
    if pretrained.is_fast:
        backend = pretrained.backend_tokenizer
        backend.encode_special_tokens = pretrained.split_special_tokens  # transformers sets this in every call
        found = of_rust(
            backend,
            name=pretrained.name_or_path,
            special_tokens={name: str(token) for name, token in special if not isinstance(token, list)},
            chat_template=pretrained.chat_template,
        )
        if all(backend.encode(one).ids == pretrained(one, verbose=False)["input_ids"] for one in PROBES):
            return replace(found, by_transformers=True)
    raise PackerError(
        f"{pretrained.name_or_path}: {type(pretrained).__name__} of transformers does not tokenize by a tokenizer.json "
        "alone: convert it to one that does, or tokenize with it and pack the tokens"
    )


def of_rust(backend: RustTokenizer, *, name: str, special_tokens: Mapping[str, str], chat_template: Any) -> Tokenizer:
    """Wrap a Rust tokenizer. Padding and truncation are switched off on it."""
    backend.no_padding()
    backend.no_truncation()
    return Tokenizer(
        name=name,
        special_tokens=special_tokens,
        chat_template=chat_template,
        backend=backend,
        content=_content_of(backend),
    )


def _content_of(backend: RustTokenizer) -> TokenizerContent:
    """Return the content of a tokenizer, without padding, truncation and post-processing."""
    text = backend.to_str()
    # Within a string, the quotes would be escaped. A vocabulary is 100 times as long as everything before it.
    at = text.index('"vocab":')
    settings = json.loads(text[:at].rstrip(",") + "}}")
    digest = xxhash.xxh3_128_hexdigest(text[at:].encode())
    found = {name: _settled(part) for name, part in settings.items() if name not in _OTHER}
    if backend.encode_special_tokens:
        found["encode_special_tokens"] = True
    return TokenizerContent(found, digest)


def _settled(part: Any) -> Any:
    """Normalize settings, so that equivalent settings are equal.

    Examples:
        >>> _settled({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False})
        {'type': 'ByteLevel', 'add_prefix_space': False, 'use_regex': False}
        >>> _settled({"type": "BPE", "continuing_subword_prefix": "", "fuse_unk": False})
        {'type': 'BPE', 'continuing_subword_prefix': None, 'fuse_unk': False}
    """
    if isinstance(part, list):
        return [_settled(one) for one in part]
    if not isinstance(part, dict):
        return part
    return {
        name: None if value == "" and name in ("continuing_subword_prefix", "end_of_word_suffix") else _settled(value)
        for name, value in part.items()
        if name != "trim_offsets"  # affects only offsets after a post-processor
    }


def added_tokens(backend: RustTokenizer, text: str) -> tuple[list[int], list[int]] | None:
    """Return the tokens that a tokenizer adds before and after a text; None if it changes the text's own tokens."""
    whole, plain = backend.encode(text).ids, backend.encode(text, add_special_tokens=False).ids
    at = next((at for at in range(len(whole)) if whole[at : at + len(plain)] == plain), None)
    return None if at is None else (whole[:at], whole[at + len(plain) :])


def shared_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the length of the common beginning of two texts or lists."""
    shortest = min(len(one), len(other))
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), shortest)


def train_byte_level(texts: Iterable[str], vocabulary: int) -> RustTokenizer:
    """Train a small byte-level BPE tokenizer. Every text round-trips, and END_OF_TEXT is token 0."""
    from tokenizers import Tokenizer as Rust
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = Rust(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer

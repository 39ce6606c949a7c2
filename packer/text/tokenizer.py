"""A tokenizer as packer uses it: text to tokens and back, special tokens and chat templates."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from packer.errors import PackerError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer
    from transformers import PreTrainedTokenizerBase


END_OF_TEXT = "<|endoftext|>"
"""End of a text in `train_byte_level`."""

PROBES = ("a", "Hello, world!\n", "  Two  spaces \u00e9\u4e2d\U0001f600 42")
"""Texts by which tokenizers are compared."""

_OTHER = ("version", "truncation", "padding", "post_processor")


class Content(NamedTuple):
    """Everything that shapes the tokens of a text, of a tokenizer in Rust, but not the tokens added around them."""

    settings: dict[str, Any]
    """`added_tokens`, `normalizer`, `pre_tokenizer`, `decoder` and `model` as in a tokenizer.json, written in one way;
    the model without its vocabulary."""
    vocabulary: str
    """xxh3-128 of the vocabulary and all that follows it in a tokenizer.json, such as merges, hexadecimal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenizer:
    """A tokenizer of the `tokenizers` library with what its configuration says."""

    name: str
    """Path or Hub id, for messages."""
    backend: RustTokenizer
    content: Content
    special_tokens: Mapping[str, str]
    """Special tokens by name, such as `eos_token`; chat templates read them by these names."""
    chat_template: Any = None
    """Chat template, or several by name, unchecked; None without one."""
    by_transformers: bool = False
    """Whether transformers opened it."""
    generation_ends: tuple[int, ...] = ()
    """Tokens at which the model stops, as its generation_config.json says; () without one."""

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

    def ids(self, text: str, *, special: bool) -> list[int]:
        """Tokenize a text, with the tokens that the tokenizer adds to every text if `special`."""
        return list(self.backend.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, special tokens included."""
        return str(self.backend.decode([int(token) for token in ids], skip_special_tokens=False))

    def id_of(self, name: str) -> int | None:
        """Return the token of a special token's name, such as "eos_token"; None if there is none."""
        return self.backend.token_to_id(self.special_tokens[name]) if name in self.special_tokens else None


def of_transformers(pretrained: PreTrainedTokenizerBase) -> Tokenizer:
    """Make a tokenizer of one of transformers.

    A PackerError is raised if it is not one in Rust, or its class does more than call that.
    """
    special = pretrained.special_tokens_map.items()
    if pretrained.is_fast:
        backend = pretrained.backend_tokenizer
        backend.encode_special_tokens = pretrained.split_special_tokens  # transformers sets this with every call
        found = of_rust(
            backend,
            name=pretrained.name_or_path,
            special_tokens={name: str(token) for name, token in special if not isinstance(token, list)},
            chat_template=pretrained.chat_template,
        )
        if all(found.ids(one, special=True) == pretrained(one, verbose=False)["input_ids"] for one in PROBES):
            return replace(found, by_transformers=True)
    raise PackerError(
        f"{pretrained.name_or_path}: {type(pretrained).__name__} of transformers does not tokenize by a tokenizer.json "
        "alone: convert it to one that does, or tokenize with it and pack the tokens"
    )


def of_rust(backend: RustTokenizer, *, name: str, special_tokens: Mapping[str, str], chat_template: Any) -> Tokenizer:
    """Make a tokenizer of one in Rust, which neither pads nor truncates from then on."""
    backend.no_padding()
    backend.no_truncation()
    return Tokenizer(
        name=name,
        special_tokens=special_tokens,
        chat_template=chat_template,
        backend=backend,
        content=content_of(backend),
    )


def content_of(backend: RustTokenizer) -> Content:
    """Return the content of a tokenizer, padding, truncation and post-processing aside."""
    text = backend.to_str()
    # within a string, the quotes would be escaped; a vocabulary is 100 times as long as all that precedes it
    at = text.index('"vocab":')
    settings = json.loads(text[:at].rstrip(",") + "}}")
    digest = xxhash.xxh3_128_hexdigest(text[at:].encode())
    found = {name: _settled(part) for name, part in settings.items() if name not in _OTHER}
    if backend.encode_special_tokens:
        found["encode_special_tokens"] = True
    return Content(found, digest)


def _settled(part: Any) -> Any:
    """Write settings that mean the same in the same way.

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
        if name != "trim_offsets"  # of offsets after a post-processor only
    }


def shared_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the number of items that two texts or lists have in common at their beginnings."""
    shortest = min(len(one), len(other))
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), shortest)


def train_byte_level(texts: Iterable[str], vocabulary: int) -> RustTokenizer:
    """Train a small byte-level BPE tokenizer: every text round-trips, and END_OF_TEXT is token 0."""
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

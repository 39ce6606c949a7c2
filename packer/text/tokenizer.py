"""A tokenizer as packer uses it: text to tokens and back, special tokens, chat templates, and places in texts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as RustTokenizer
    from transformers import PreTrainedTokenizerBase


END_OF_TEXT = "<|endoftext|>"
"""End of a text in `train_byte_level`."""

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
    """A tokenizer of the `tokenizers` library with what its configuration says, or one of transformers."""

    name: str
    """Path or Hub id, for messages."""
    special_tokens: Mapping[str, str]
    """Special tokens by name, such as `eos_token`; chat templates read them by these names."""
    chat_template: Any = None
    """Chat template, or several by name, unchecked; None without one."""
    backend: RustTokenizer | None = None
    """Tokenizer in Rust; None if there is none."""
    content: Content | None = None
    """Content of the tokenizer in Rust, if it was opened without transformers."""
    pretrained: PreTrainedTokenizerBase | None = None
    """Tokenizer of transformers, which may do more than the one in Rust; None if it is not needed."""
    generation_ends: tuple[int, ...] = ()
    """Tokens at which the model stops, as its generation_config.json says; () without one."""

    @property
    def ends(self) -> tuple[str, ...]:
        """Texts of the tokens at which the model stops: the end-of-sequence token and `generation_ends`."""
        added = self._added
        found = [
            self.special_tokens.get("eos_token"),
            *(added[at].content for at in self.generation_ends if at in added),
        ]
        return tuple(sorted({text for text in found if text}))

    @property
    def special_texts(self) -> tuple[str, ...]:
        """Texts of all special tokens, named or not."""
        added = (token.content for token in self._added.values() if token.special)
        return tuple({*self.special_tokens.values(), *added})

    def has_token(self, token: str) -> bool:
        """Whether a text is a token of the vocabulary."""
        if self.pretrained is None:
            return self._rust.token_to_id(token) is not None
        number = self.pretrained.convert_tokens_to_ids(token)
        return number is not None and self.pretrained.convert_ids_to_tokens(number) == token

    def ids(self, text: str, *, special: bool) -> list[int]:
        """Tokenize a text, with the tokens that the tokenizer adds to every text if `special`."""
        if self.pretrained is None:
            return list(self._rust.encode(text, add_special_tokens=special).ids)
        return [int(token) for token in self.pretrained(text, add_special_tokens=special, verbose=False)["input_ids"]]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, special tokens included."""
        numbers = [int(token) for token in ids]
        if self.pretrained is None:
            return str(self._rust.decode(numbers, skip_special_tokens=False))
        return str(self.pretrained.decode(numbers))

    @property
    def _added(self) -> Mapping[int, AddedToken]:
        """Tokens added to the vocabulary, which no text is merged with, by their ids."""
        if self.pretrained is not None:
            return self.pretrained.added_tokens_decoder
        return self._rust.get_added_tokens_decoder()

    @property
    def _rust(self) -> RustTokenizer:
        assert self.backend is not None, "a tokenizer without transformers is one in Rust"
        return self.backend

    def id_of(self, name: str) -> int | None:
        """Return the token of a special token's name, such as "eos_token"; None if there is none."""
        if self.pretrained is not None:
            number = getattr(self.pretrained, f"{name}_id")
            return None if number is None else int(number)
        return self._rust.token_to_id(self.special_tokens[name]) if name in self.special_tokens else None


def of_transformers(pretrained: PreTrainedTokenizerBase) -> Tokenizer:
    """Make a tokenizer of one of transformers."""
    special = pretrained.special_tokens_map.items()
    if pretrained.is_fast:
        # transformers sets this with every call
        pretrained.backend_tokenizer.encode_special_tokens = pretrained.split_special_tokens
    return Tokenizer(
        name=pretrained.name_or_path,
        special_tokens={name: str(token) for name, token in special if not isinstance(token, list)},
        chat_template=pretrained.chat_template,
        backend=pretrained.backend_tokenizer if pretrained.is_fast else None,
        pretrained=pretrained,
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

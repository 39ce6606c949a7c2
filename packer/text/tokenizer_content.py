"""Everything that determines the tokens of a tokenizer in Rust, however it was made."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_OTHER = ("version", "truncation", "padding", "post_processor")


class Content(NamedTuple):
    """Content of a tokenizer, except for the tokens that it adds around those of a text."""

    settings: dict[str, Any]
    """`added_tokens`, `normalizer`, `pre_tokenizer`, `decoder` and `model` as in a tokenizer.json, written in one way;
    the model without its vocabulary."""
    vocabulary: str
    """xxh3-128 of the vocabulary and all that follows it in a tokenizer.json, such as merges, hexadecimal."""


def content_of(backend: Tokenizer) -> Content:
    """Return the content of a tokenizer, padding, truncation and post-processing aside."""
    text = backend.to_str()
    # within a string, the quotes would be escaped; a vocabulary is 100 times as long as all that precedes it
    at = text.index('"vocab":')
    settings = json.loads(text[:at].rstrip(",") + "}}")
    digest = xxhash.xxh3_128_hexdigest(text[at:].encode())
    return Content({name: settled(part) for name, part in settings.items() if name not in _OTHER}, digest)


def settled(part: Any) -> Any:
    """Write settings that mean the same in the same way.

    Examples:
        >>> settled({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False})
        {'type': 'ByteLevel', 'add_prefix_space': False, 'use_regex': False}
        >>> settled({"type": "BPE", "continuing_subword_prefix": "", "fuse_unk": False})
        {'type': 'BPE', 'continuing_subword_prefix': None, 'fuse_unk': False}
    """
    if isinstance(part, list):
        return [settled(one) for one in part]
    if not isinstance(part, dict):
        return part
    return {
        name: None if value == "" and name in ("continuing_subword_prefix", "end_of_word_suffix") else settled(value)
        for name, value in part.items()
        if name != "trim_offsets"  # of offsets after a post-processor only
    }

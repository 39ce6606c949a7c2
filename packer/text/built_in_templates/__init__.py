"""Chat templates that come with packer: `NAME.jinja`. Only `qwen3` writes tools.

Every message is rendered in the same way whatever follows it, so that assistant spans can be located in chats of any
number of turns. Chats with one answer get the tokens of the models' own templates (tests compare them).
"""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple


class BuiltIn(NamedTuple):
    """A built-in chat template."""

    source: str
    """The template, in Jinja."""
    special_tokens: tuple[str, ...]
    """Special tokens that it writes; a tokenizer without them would split them into pieces of text."""
    ends: tuple[str, ...]
    """Special tokens at which its models stop."""


_TOKENS = {
    "chatml": (("<|im_start|>",), ("<|im_end|>",)),
    "gemma3": (("<start_of_turn>",), ("<end_of_turn>",)),
    "glm4moe": (("[gMASK]", "<sop>", "<|system|>", "<|assistant|>"), ("<|user|>", "<|observation|>")),
    "llama3": (("<|start_header_id|>", "<|end_header_id|>"), ("<|eot_id|>",)),
    "qwen3": (("<|im_start|>",), ("<|im_end|>",)),
}


def built_in(name: str) -> BuiltIn:
    """Return a built-in chat template."""
    special_tokens, ends = _TOKENS[name]
    source = (files(__package__) / f"{name}.jinja").read_text(encoding="utf-8")
    return BuiltIn(source, (*special_tokens, *ends), ends)

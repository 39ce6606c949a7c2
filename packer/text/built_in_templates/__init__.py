"""Chat templates that come with packer: `NAME.jinja`. Only `qwen3` writes tools.

The rendering of a message does not depend on the messages after it, so assistant spans can be located in chats with any
number of turns. For chats with one answer, tests check that the tokens equal those of the model's own template.
"""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple


class BuiltIn(NamedTuple):
    """A built-in chat template."""

    source: str
    """The template, in Jinja."""
    special_tokens: tuple[str, ...]
    """Special tokens that the template writes; the tokenizer must have them as tokens."""
    ends: tuple[str, ...]
    """Special tokens at which models with this template stop."""


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

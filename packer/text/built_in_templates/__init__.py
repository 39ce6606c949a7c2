"""Chat templates that come with packer, for chats without tools: `NAME.jinja`.

Every message is rendered in the same way whatever follows it, so that assistant spans can be located in chats of any
number of turns. Chats with one answer get the tokens of the models' own templates (tests compare them).
"""

from __future__ import annotations

from importlib.resources import files

_TOKENS = {
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "qwen3": ("<|im_start|>", "<|im_end|>"),
    "llama3": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "gemma3": ("<start_of_turn>", "<end_of_turn>"),
}
"""Special tokens that a template writes; a tokenizer without them would split them into pieces of text."""


def built_in(name: str) -> tuple[str, tuple[str, ...]]:
    """Return (template, special tokens that it writes) of a built-in chat template."""
    return (files(__package__) / f"{name}.jinja").read_text(encoding="utf-8"), _TOKENS[name]

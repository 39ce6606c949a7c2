"""What shapes the tokens, as a manifest can keep it: no paths, and the same for a folder and its copy on the Hub."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from packer.paths import expanded
from packer.text.rendering import template_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LIBRARIES = ("tokenizers", "transformers", "jinja2")
"""Whose versions an identity holds, under these names."""


def tokenizer_identity(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """A hash of a tokenizer's content, and the versions of the libraries that work with it."""
    import tokenizers
    import transformers

    content = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else _sorted(tokenizer.get_vocab())
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return {
        "tokenizer": _hash(type(tokenizer).__name__ + _sorted(special) + content),
        "tokenizers": tokenizers.__version__,
        "transformers": transformers.__version__,
    }


def tokenizer_name(path_or_id: str) -> str:
    """A tokenizer's name without the path: "/data/qwen3/" -> "qwen3", "org/name" on the Hub as it is."""
    path = Path(expanded(path_or_id))
    return path.resolve().name if path.exists() else path_or_id


def template_identity(sources: dict[str, str]) -> dict[str, Any]:
    """A hash of the chat templates; where one writes today's date, that too."""
    import jinja2

    identity = {"chat_template": _hash(_sorted(sources)), "jinja2": jinja2.__version__}
    if any(("name", "strftime_now") in template_tokens(source) for source in sources.values()):
        identity["today"] = datetime.date.today().isoformat()
    return identity


def _sorted(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _hash(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode())

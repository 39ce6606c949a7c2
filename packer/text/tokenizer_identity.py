"""What shapes the tokens, for a manifest: without paths, and the same for a folder and its copy on the Hub."""

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
"""Libraries whose versions an identity holds, under these names."""


def tokenizer_identity(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return a hash of a tokenizer's content, and the versions of the libraries that run it."""
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
    """Return a tokenizer's name without its path: "/data/qwen3/" -> "qwen3"; a Hub id is its own name."""
    path = Path(expanded(path_or_id))
    return path.resolve().name if path.exists() else path_or_id


def template_identity(sources: dict[str, str]) -> dict[str, Any]:
    """Return a hash of the chat templates, and today's date if one of them writes it."""
    import jinja2

    identity = {"chat_template": _hash(_sorted(sources)), "jinja2": jinja2.__version__}
    if any(("name", "strftime_now") in template_tokens(source) for source in sources.values()):
        identity["today"] = datetime.date.today().isoformat()
    return identity


def _sorted(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _hash(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode())

"""What shapes the tokens, for a manifest: without paths, and the same for a folder and its copy on the Hub."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import xxhash

from packer.facts import TextIdentity
from packer.text.rendering import template_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def text_identity(
    tokenizer: PreTrainedTokenizerBase, *, columns: Sequence[str], train_on: str, eos: bool
) -> TextIdentity:
    """Identify the tokens of text without a chat template; the arguments are fields of `TextIdentity`."""
    import tokenizers
    import transformers

    content = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else _sorted(tokenizer.get_vocab())
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return TextIdentity(
        columns=tuple(columns),
        train_on=train_on,
        eos=eos,
        tokenizer=_hash(type(tokenizer).__name__ + _sorted(special) + content),
        tokenizers=tokenizers.__version__,
        transformers=transformers.__version__,
    )


def with_templates(identity: TextIdentity, sources: dict[str, str]) -> TextIdentity:
    """Add a hash of the chat templates, and today's date if one of them writes it."""
    import jinja2

    writes_date = any(("name", "strftime_now") in template_tokens(source) for source in sources.values())
    today = datetime.date.today().isoformat() if writes_date else None
    return replace(identity, chat_template=_hash(_sorted(sources)), jinja2=jinja2.__version__, today=today)


def _sorted(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _hash(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode())

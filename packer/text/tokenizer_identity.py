"""Identity of the tokens of text, for a manifest: without paths, and equal for a folder and its copy on the Hub."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import xxhash

from packer.facts import TextIdentity
from packer.text.tokenizer import Tokenizer
from packer.text.tokens import TextTokens


def text_identity(
    tokenizer: Tokenizer, tokens: TextTokens, *, columns: Sequence[str], train_on: str, eos: bool
) -> TextIdentity:
    """Identify the tokens of text without a chat template; the other arguments are fields of `TextIdentity`.

    A tokenizer has the same hash with transformers and without, whatever the class of transformers is called.
    """
    import tokenizers

    return TextIdentity(
        columns=tuple(columns),
        train_on=train_on,
        eos=eos,
        tokenizer=_hash(_sorted([*_content(tokenizer, tokens), dict(tokenizer.special_tokens)])),
        tokenizers=tokenizers.__version__,
        transformers=version("transformers") if tokenizer.pretrained is not None else None,
    )


def _content(tokenizer: Tokenizer, tokens: TextTokens) -> list[Any]:
    """What turns text into tokens."""
    ends = [tokens.prefix, tokens.suffix]
    if tokens.content is None:
        assert tokenizer.pretrained is not None, "a tokenizer without transformers is one in Rust"
        return [type(tokenizer.pretrained).__name__, tokenizer.pretrained.get_vocab(), ends]
    settings, vocabulary = tokens.content
    return [{name: value for name, value in settings.items() if name != "decoder"}, vocabulary, ends]


def with_templates(identity: TextIdentity, sources: dict[str, str], ends: Sequence[str]) -> TextIdentity:
    """Add a hash of the chat templates and of the tokens that end answers, and today's date if one of them writes it.

    `ends` is empty if templates end answers by themselves, so that a generation_config.json makes no difference.
    """
    import jinja2

    from packer.text.rendering import template_tokens

    writes_date = any(("name", "strftime_now") in template_tokens(source) for source in sources.values())
    today = datetime.date.today().isoformat() if writes_date else None
    return replace(
        identity,
        chat_template=_hash(_sorted([sources, *ends] if ends else sources)),
        jinja2=jinja2.__version__,
        today=today,
    )


def _sorted(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _hash(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode())

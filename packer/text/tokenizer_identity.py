"""Identity of the tokens of text, for a manifest: without paths, and equal for a folder and its copy on the Hub."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import xxhash

from packer.facts import TextIdentity
from packer.text.tokenizer import Tokenizer
from packer.text.tokens import TextTokens

if TYPE_CHECKING:
    from packer.text.chat_template import ChatTemplate


def text_identity(
    tokenizer: Tokenizer,
    tokens: TextTokens,
    template: ChatTemplate | None,
    *,
    columns: Sequence[str],
    train_on: str,
    eos: bool,
) -> TextIdentity:
    """Identify the tokens of text, or of chats by their template; the other arguments are fields of `TextIdentity`.

    A tokenizer has the same hash with transformers and without, whatever the class of transformers is called.
    """
    from importlib.metadata import version

    import tokenizers

    identity = TextIdentity(
        columns=tuple(columns),
        train_on=train_on,
        eos=eos,
        tokenizer=_hash([*_content(tokenizer, tokens), dict(tokenizer.special_tokens)]),
        tokenizers=tokenizers.__version__,
        transformers=version("transformers") if tokenizer.pretrained is not None else None,
    )
    if template is None:
        return identity
    # empty if templates end answers by themselves, so that a generation_config.json makes no difference
    sources, ends = template.templates.sources, template.ends_by_next_role
    return replace(
        identity,
        chat_template=_hash([sources, *ends] if ends else sources),
        jinja2=version("jinja2"),
        today=datetime.date.today().isoformat() if template.templates.write_date else None,
    )


def _content(tokenizer: Tokenizer, tokens: TextTokens) -> list[Any]:
    """What turns text into tokens."""
    ends = [tokens.prefix, tokens.suffix]
    if tokens.content is None:
        assert tokenizer.pretrained is not None, "a tokenizer without transformers is one in Rust"
        return [type(tokenizer.pretrained).__name__, tokenizer.pretrained.get_vocab(), ends]
    settings, vocabulary = tokens.content
    return [{name: value for name, value in settings.items() if name != "decoder"}, vocabulary, ends]


def _hash(value: Any) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True).encode())

"""A tokenizer as packer uses it: text to tokens and back, special tokens and chat templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packer.text.tokenizer_content import Content, content_of

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as RustTokenizer
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenizer:
    """A tokenizer of the `tokenizers` library with what its configuration says, or one of transformers."""

    name: str
    """Path or Hub id, for messages."""
    special_tokens: Mapping[str, str]
    """Special tokens by name, such as `eos_token`; chat templates read them by these names."""
    chat_template: Any = None
    """A chat template, several by name, or whatever else the configuration has; None without one."""
    backend: RustTokenizer | None = None
    """The tokenizer in Rust; None if there is none."""
    content: Content | None = None
    """Content of the tokenizer in Rust, if it was opened without transformers."""
    pretrained: PreTrainedTokenizerBase | None = None
    """The tokenizer of transformers, which may do more than the one in Rust; None if it is not needed."""
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
        """Texts of all special tokens, also of those without a name."""
        added = (token.content for token in self._added.values() if token.special)
        return tuple({*self.special_tokens.values(), *added})

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a sequence; None if there is none."""
        return self._id_of_special("eos_token")

    @property
    def pad_token_id(self) -> int | None:
        """The token for padding; None if there is none."""
        return self._id_of_special("pad_token")

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

    def _id_of_special(self, name: str) -> int | None:
        if self.pretrained is not None:
            number = getattr(self.pretrained, f"{name}_id")
            return None if number is None else int(number)
        return self._rust.token_to_id(self.special_tokens[name]) if name in self.special_tokens else None


def of_transformers(pretrained: PreTrainedTokenizerBase) -> Tokenizer:
    """Make a tokenizer of one of transformers."""
    special = pretrained.special_tokens_map.items()
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

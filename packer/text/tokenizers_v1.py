"""Tokenizers of version 1 of the tokenizers library, with the methods of version 0 that packer calls.

Those of version 1 encode and decode, many times as fast, and show nothing of what they are: settings, vocabulary and
added tokens are read from the tokenizer.json that they are made of. They have no offsets.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from tokenizers import Tokenizer as RustTokenizer

_BPE = {
    **{"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None},
    **{"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False},
}
"""Settings of a BPE model where its file names none."""


def open_json(path: Path) -> RustTokenizer:
    """Open a tokenizer.json by the version of the library that is installed, which raises plain `Exception`."""
    import tokenizers

    if hasattr(tokenizers, "models"):
        return tokenizers.Tokenizer.from_file(str(path))
    return cast(
        "RustTokenizer", TokenizerV1(path.read_text(encoding="utf-8"), tokenizers.Tokenizer.from_file(str(path)))
    )


class TokenizerV1:
    """A tokenizer of version 1, and the tokenizer.json that it is made of; methods are those of version 0."""

    # ruff: noqa: D102
    encode_special_tokens = False
    post_processor = None  # left out by `add_special_tokens`

    def __init__(self, text: str, rust: Any) -> None:
        self._rust, self._settings = rust, json.loads(text)
        self.padding: dict[str, Any] | None = self._settings.get("padding")
        vocabulary = self._settings["model"]["vocab"]
        is_scored = isinstance(vocabulary, list)  # Unigram
        self._vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)} if is_scored else vocabulary
        self._added = {one["id"]: SimpleNamespace(**one) for one in self._settings["added_tokens"]}

    def no_padding(self) -> None:
        self._rust.padding = self.padding = None

    def no_truncation(self) -> None:
        self._rust.truncation = None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> Any:
        return self._rust.encode(text, add_special_tokens=add_special_tokens)

    def encode_batch_fast(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[Any]:
        return list(self._rust.encode_batch(texts, add_special_tokens=add_special_tokens))

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return str(self._rust.decode(ids, skip_special_tokens=skip_special_tokens))

    def get_added_tokens_decoder(self) -> dict[int, SimpleNamespace]:
        return self._added

    def get_vocab(self) -> dict[str, int]:
        return self._vocabulary | {one.content: number for number, one in self._added.items()}

    def token_to_id(self, token: str) -> int | None:
        added = (number for number, one in self._added.items() if one.content == token)
        return next(added, self._vocabulary.get(token))

    def to_str(self) -> str:
        """Return the tokenizer.json as version 0 writes it, also if the file is older; so both have one identity."""
        model = self._settings["model"]
        if model.get("type", "BPE") == "BPE":
            merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
            vocabulary = dict(sorted(self._vocabulary.items(), key=itemgetter(1)))
            model = {**_BPE, **model, "vocab": vocabulary, "merges": merges}
        added = sorted(self._settings["added_tokens"], key=itemgetter("id"))
        settings = {**self._settings, "added_tokens": added, "model": model}
        return json.dumps(settings, ensure_ascii=False, separators=(",", ":"))

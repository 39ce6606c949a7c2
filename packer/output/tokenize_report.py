"""Content of tokenized.json, the record of a tokenized dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packer.facts import JsonRecord, SourceIdentity, TextIdentity
from packer.facts.json_record import Count
from packer.output.request import Request, RequestedFile


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizedShard(JsonRecord):
    """A shard of a tokenized dataset."""

    file: str
    """Name of the file, in the folder of the record."""

    bytes: Count
    """Size of the file."""

    xxh3_128: str
    """Hash of the file, hexadecimal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeReport(JsonRecord):
    """Record of a tokenized dataset, written last."""

    tokenizer: str
    """Name of the tokenizer."""

    pad_id: Count
    """The tokenizer's padding token, or its end-of-sequence token, or 0."""

    options: Mapping[str, object]
    """Names of the columns to keep, under the key "keep", and "on_error" unless it is the default."""

    text: TextIdentity
    """Everything that shapes the tokens."""

    files: tuple[RequestedFile, ...]
    """Name and size of each source file."""

    source: SourceIdentity
    """Identity of the tokens as a source."""

    documents_straddling: Count
    """Documents with a token that is only partly in trained text."""

    documents_untrained: Count
    """Documents that have tokens, none of them trained."""

    documents_rejected: Mapping[str, Count] | None = None
    """Documents that could not be used and are empty, by reason; None if one would have been an error."""

    rejected_xxh3_128: str | None = None
    """Hash of rejected.jsonl, which lists them; None if there is no such file."""

    shards: tuple[TokenizedShard, ...]
    """Shards in order."""

    @property
    def request(self) -> Request:
        """The request that made the dataset."""
        return Request(options=self.options, files=self.files, texts={"": self.text})

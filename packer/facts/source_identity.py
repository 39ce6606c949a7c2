"""Identity of a source, by which changes to it are detected; contains neither absolute paths nor times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from packer.facts.json_record import Count, Documents, JsonRecord, Positive, Weight

_VERSIONS = ("tokenizers", "transformers", "jinja2")


@dataclass(frozen=True, kw_only=True, slots=True)
class FileIdentity(JsonRecord):
    """A file of a source."""

    name: str
    """Path relative to the source."""

    bytes: Count
    """Size of the file."""

    rows: Count
    """Documents in the file; with an indices mapping, the selected ones."""

    tokens: Count
    """Tokens of these documents."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextIdentity(JsonRecord):
    """Everything that determines the tokens of text; equal for a folder and its copy on the Hub."""

    columns: tuple[str, ...]
    """Names of the columns that are read."""

    train_on: str
    """Which tokens are trained; one of the choices of `--train-on`."""

    eos: bool
    """Whether texts and completions end with the end-of-sequence token."""

    tokenizer: str
    """xxh3-128 of the tokenizer's content, hexadecimal."""

    tokenizers: str
    """Version of the tokenizers library."""

    transformers: str | None = None
    """Version of the transformers library; None if it was not needed."""

    chat_template: str | None = None
    """xxh3-128 of the chat templates, hexadecimal; None if the text is not a chat."""

    jinja2: str | None = None
    """Version of the jinja2 library; None if the text is not a chat."""

    today: str | None = None
    """Date of tokenizing, YYYY-MM-DD; None unless a chat template uses it."""

    indices_xxh3_128: str | None = None
    """Hash of the indices mapping, hexadecimal; None without one."""

    def without_versions(self) -> dict[str, Any]:
        """Return the JSON object without library versions, which may differ although the tokens are the same."""
        return {name: value for name, value in self.to_dict().items() if name not in _VERSIONS}


@dataclass(frozen=True, kw_only=True, slots=True)
class TakenDocuments(JsonRecord):
    """Counts of what a mixture takes of a source."""

    copies: Count
    """Number of times that all documents are taken, in addition to the sample."""

    documents: Count
    """Number of documents taken, copies included."""

    tokens: Count
    """Tokens of these documents."""

    tokens_kept: Count
    """Tokens of these documents that reach the rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MixturePart(JsonRecord):
    """A source of a mixture; fields of the same name mean the same as in `SourceIdentity`."""

    name: str
    """Name of the source in messages; no two of a mixture are equal."""

    weight: Weight
    """Requested weight, in units of `mix_unit`."""

    files: Count
    """Number of files; the files themselves are listed by the mixture."""

    documents: Documents
    """Documents of the source, taken or not."""

    tokens: Count
    """Tokens of these documents."""

    labels: bool
    """Whether the source has labels."""

    lengths_xxh3_128: str
    """Hash of the lengths of all documents."""

    columns: tuple[str, ...] = ()
    """Names of the extra columns."""

    text: TextIdentity | None = None
    """Everything that shapes the tokens; None if the source holds tokens."""

    indices_xxh3_128: str | None = None
    """Hash of the order of the documents; None if it is that of the files."""

    tokens_kept: Positive
    """Tokens of the whole source that would reach the rows."""

    taken: TakenDocuments
    """Counts of what the mixture takes."""

    @classmethod
    def of(
        cls, identity: SourceIdentity, *, name: str, weight: float, tokens_kept: int, taken: TakenDocuments
    ) -> MixturePart:
        """Describe a source of a mixture, given its identity as a single source; the other arguments set fields."""
        values = identity.values() | {"files": len(identity.files)}
        del values["mixture"]
        return cls(**values, name=name, weight=weight, tokens_kept=tokens_kept, taken=taken)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceIdentity(JsonRecord):
    """A source or a mixture; for a mixture, documents and tokens are those that are taken."""

    files: tuple[FileIdentity, ...]
    """Files in order; for a mixture, those of all sources."""

    documents: Documents
    """Number of documents."""

    tokens: Count
    """Tokens of all documents."""

    labels: bool
    """Whether the source has labels; for a mixture, whether any of its sources has."""

    lengths_xxh3_128: str
    """xxh3-128 of the lengths of all documents in order, int32, hexadecimal."""

    columns: tuple[str, ...] = ()
    """Names of the extra columns."""

    text: TextIdentity | None = None
    """Everything that shapes the tokens; None if the source holds tokens or is a mixture."""

    indices_xxh3_128: str | None = None
    """xxh3-128 of the order of the documents, int64, hexadecimal; None if it is that of the files."""

    mixture: tuple[MixturePart, ...] = ()
    """The sources of a mixture; empty for a single source."""

    @property
    def texts(self) -> dict[str, TextIdentity]:
        """Text identity of each source of text by its name in the mixture, or "" for a single source."""
        parts = [("", self.text), *((part.name, part.text) for part in self.mixture)]
        return {name: text for name, text in parts if text is not None}

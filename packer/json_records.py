"""Records: dataclasses that are written as JSON objects, including the records of a manifest.

A record is checked against its declaration when it is read. The records of a manifest distinguish sources, and count
documents, tokens, rows and shards. Totals count every document and token of the source by what happened to it. The
identity of a source serves to detect changes. It contains neither absolute paths nor times.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

SomeRecord = TypeVar("SomeRecord", bound="JsonRecord")

Collected = TypeVar("Collected", dict[str, object], list[object])


class ValueKind(NamedTuple):
    """A kind of JSON values other than lists and objects: its name in messages, and a test for its values."""

    name: str
    fits: Callable[[Any], bool]


def whole_number(least: int, most: int) -> ValueKind:
    """Return the kind of integers from `least` to `most`."""
    return ValueKind(
        f"a whole number from {least} to {most}", lambda value: type(value) is int and least <= value <= most
    )


def number(least: float, most: float = sys.float_info.max) -> ValueKind:
    """Return the kind of integers and floats from `least` to `most`, without NaN."""
    limits = "above 0" if least == sys.float_info.min else f"from {least}"
    limits += "" if most == sys.float_info.max else f" to {most}"
    return ValueKind(f"a number {limits}", lambda value: type(value) in (int, float) and least <= value <= most)


def or_null(kind: ValueKind) -> ValueKind:
    """Return the kind that also allows null."""
    return ValueKind(f"{kind.name}, or null", lambda value: value is None or kind.fits(value))


TEXT = ValueKind("a string", lambda value: type(value) is str)
FLAG = ValueKind("true or false", lambda value: type(value) is bool)
_WHOLE = whole_number(-(2**63), 2**63 - 1)
_SIMPLE: dict[Any, ValueKind] = {str: TEXT, bool: FLAG, int: _WHOLE, object: ValueKind("any value", lambda value: True)}

Count = Annotated[int, whole_number(0, 2**63 - 1)]
DocumentCount = Annotated[int, whole_number(0, 2**40)]  # a trillion, whose lengths alone take 4 TB
Positive = Annotated[int, whole_number(1, 2**63 - 1)]
Ratio = Annotated[float, number(0)]


class JsonRecord:
    """Base of frozen dataclasses that are written as JSON objects.

    A field holds a string, a bool, an integer, a number of an annotated type (such as `Count`), another record, a tuple
    of these, or a mapping from names to these. Fields that equal their defaults are left out of the object, and so are
    fields with `compare=False`, such as a path.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class File(JsonRecord):
    ...     name: str
    ...     rows: Count
    ...     columns: tuple[str, ...] = ()
    >>> File(name="a.arrow", rows=3).to_dict()
    {'name': 'a.arrow', 'rows': 3}
    >>> File.from_dict({"name": "a.arrow", "rows": -3})
    TypeError: rows is -3, not a whole number from 0 to 9223372036854775807
    """

    __slots__ = ()

    def values(self) -> dict[str, Any]:
        """Return the values of the fields by name, without converting them to JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object, with keys in the order of the fields."""
        defaults = {field.name: field.default for field in fields(self) if field.compare}  # type: ignore[arg-type]
        return {
            name: _to_json(value)
            for name, value in self.values().items()
            if name in defaults and (defaults[name] is MISSING or value != defaults[name])
        }

    @classmethod
    def from_dict(cls: type[SomeRecord], content: object, name: str = "") -> SomeRecord:
        """Read the record of a JSON object; see `read_fields` for `name` and errors."""
        types, optional = _declared(cls)  # type: ignore[arg-type]
        return cls(**read_fields(content, types, optional, name=name))


def read_fields(
    content: object, types: Mapping[str, object], optional: frozenset[str] = frozenset(), *, name: str = ""
) -> dict[str, Any]:
    """Check the fields of a JSON object and return their values.

    Unknown fields, which later versions may add, are ignored. types: a `ValueKind`, or the type of a `JsonRecord`'s
    field, for each name. name: name of the object in messages; "" for the manifest. Raises a KeyError for missing
    fields, and a TypeError for values of another kind or outside their limits.
    """
    found = _typed(content, dict, name)
    for field in types:
        if field not in found and field not in optional:
            raise KeyError(field)
    inside = f"{name}." if name else ""
    return {field: _read(types[field], value, inside + field) for field, value in found.items() if field in types}


def _read(hint: object, value: object, name: str) -> object:
    """Convert a JSON value to the type `hint`."""
    if isinstance(hint, type) and issubclass(hint, JsonRecord):
        return hint.from_dict(value, name)
    if get_origin(hint) is tuple:
        ones = enumerate(_typed(value, list, name))
        return tuple(_read(get_args(hint)[0], one, f"{name}[{number}]") for number, one in ones)
    if get_origin(hint) is Mapping:
        found = _typed(value, dict, name)
        return {key: _read(get_args(hint)[1], one, f"{name}.{key}") for key, one in found.items()}
    kind: ValueKind = hint if isinstance(hint, ValueKind) else _SIMPLE.get(hint) or get_args(hint)[1]
    if not kind.fits(value):
        raise TypeError(f"{name} is {_short(value)}, not {kind.name}")
    return value


def _typed(value: object, expected: type[Collected], name: str) -> Collected:
    if type(value) is expected:
        return value
    words = "an object" if expected is dict else "a list"
    raise TypeError(f"{name or 'the manifest'} is {_short(value)}, not {words}")


@cache
def _declared(record: type) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the type of each field, without None for optional fields, and the names of the optional fields."""
    types, hints = {}, get_type_hints(record, include_extras=True)
    for name in (field.name for field in fields(record) if field.compare):
        hint = hints[name]
        others = [each for each in get_args(hint) if each is not type(None)]
        types[name] = others[0] if type(None) in get_args(hint) else hint
    return types, frozenset(field.name for field in fields(record) if field.default is not MISSING)


def _to_json(value: object) -> object:
    if isinstance(value, JsonRecord):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_to_json(one) for one in value]
    if isinstance(value, Mapping):
        return {name: _to_json(one) for name, one in value.items()}
    return value


def _short(value: object) -> str:
    """Return the first 40 characters of a value as JSON."""
    return json.dumps(value)[:40]


Reason = Literal[
    "unreadable",
    "missing_value",
    "wrong_type",
    "invalid_text",
    "invalid_chat",
    "template_error",
    "unlocated_spans",
    "invalid_tokens",
    "invalid_labels",
    "invalid_value",
]
"""Why a record cannot be used. The names are part of the format:

- unreadable: it cannot be parsed, or is not an object.
- missing_value: a column, or the content of a message, is missing or null.
- wrong_type: a value has another type than expected, such as a number where text belongs.
- invalid_text: text cannot be written as UTF-8, or the tokenizer refuses it.
- invalid_chat: a role is unknown or missing, or messages contradict each other or the options.
- template_error: the chat template refuses the chat.
- unlocated_spans: the assistant's answers cannot be located exactly in the rendered chat.
- invalid_tokens: a token is null or out of range, or there are too many.
- invalid_labels: labels or a mask are null, have another length than the tokens, or hold an invalid value.
- invalid_value: a value of a kept column cannot be kept, or a value for a limit is missing or not a whole number.
"""

REASONS: tuple[Reason, ...] = get_args(Reason)

REJECTED = "rejected.jsonl"
"""File in the output that lists the rejected records, one `RejectedRecord` per line."""

REMEDY = "or leave such records out with --on-error skip"
"""End of the message for a record that cannot be used."""

_VERSIONS = ("tokenizers", "transformers", "jinja2")


@dataclass(frozen=True, kw_only=True, slots=True)
class FileIdentity(JsonRecord):
    """A file of a source."""

    name: str
    """Path relative to the source."""

    bytes: Count
    rows: Count
    """Number of documents in the file."""

    tokens: Count


@dataclass(frozen=True, kw_only=True, slots=True)
class TextIdentity(JsonRecord):
    """Everything that determines how text becomes tokens. It is equal for a folder and its copy on the Hub."""

    columns: tuple[str, ...]
    """Names of the columns that are read."""

    train_on: str
    """Which tokens are trained; one of the choices of `--train-on`."""

    untrained_parts: tuple[str, ...] = ()
    """Parts of answers that are not trained; choices of `--untrained-parts`."""

    eos: bool
    """Whether texts and completions end with the end-of-sequence token."""

    as_chats: bool
    """Whether prompts and completions in strings were rendered as chats of two messages."""

    tokenizer: str
    """Hexadecimal xxh3-128 of the tokenizer's content."""

    tokenizers: str
    transformers: str | None = None
    """Version of the transformers library; None if it was not needed."""

    chat_template: str | None = None
    """Hexadecimal xxh3-128 of the chat templates; None if the text is not a chat."""

    jinja2: str | None = None
    """Version of the jinja2 library; None if the text is not a chat."""

    stand_in: str | None = None
    """Built-in chat template used instead of the tokenizer's own, which rewrites earlier answers; or None."""

    def without_versions(self) -> dict[str, Any]:
        """Return the JSON object without library versions, which may differ although the tokens are equal."""
        return {name: value for name, value in self.to_dict().items() if name not in _VERSIONS}


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceIdentity(JsonRecord):
    """Facts that identify a source."""

    files: tuple[FileIdentity, ...]
    """Files in order."""

    documents: DocumentCount
    tokens: Count
    labels: bool
    """Whether the source has labels."""

    lengths_xxh3_128: str
    """Hexadecimal xxh3-128 of the lengths of all documents in order, as int32."""

    columns: tuple[str, ...] = ()
    """Names of the extra columns."""

    widths: Mapping[str, Positive] | None = None
    """Number of values per token of each extra column that has several; None if there is no such column."""

    text: TextIdentity | None = None
    """Everything that determines how text becomes tokens; None for a source of tokens."""


def _sum(one: Any, other: Any) -> Any:
    """Add two numbers, or numbers by name."""
    if isinstance(one, int):
        return one + other
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Account(JsonRecord):
    """Counts of a source's documents and tokens by what happened to them.

    The accounts of the parts of a source add up to the account of the source.
    """

    documents: DocumentCount
    """Number of documents of the source."""

    documents_split: Count
    """Number of documents with two or more segments in rows; dropped untrained segments do not count."""

    documents_truncated: Count
    """Number of documents shortened by truncation."""

    documents_dropped: Mapping[str, Count]
    """Number of documents without a segment, by reason."""

    tokens: Count
    """Number of tokens of the source. Each is packed, truncated or dropped."""

    tokens_packed: Count
    """Number of tokens in segments."""

    tokens_truncated: Count
    """Number of tokens cut off by truncation, even in documents that are then dropped."""

    tokens_dropped: Mapping[str, Count]
    """Number of tokens of dropped documents, by reason, without those cut off by truncation."""

    @property
    def documents_packed(self) -> int:
        """Number of documents with at least one segment."""
        return self.documents - sum(self.documents_dropped.values())

    @property
    def tokens_lost(self) -> int:
        """Number of tokens that were truncated or dropped, without those of the other set of a holdout."""
        others = ("held_out", "not_held_out")
        return self.tokens_truncated + sum(n for reason, n in self.tokens_dropped.items() if reason not in others)

    def with_rejected(self, rejected: int) -> Account:
        """Return the account with `rejected` of the empty documents counted as "rejected" instead."""
        dropped = {**self.documents_dropped, "empty": self.documents_dropped["empty"] - rejected, "rejected": rejected}
        return replace(self, documents_dropped=dropped)

    def __add__(self, other: Account) -> Account:
        """Return the account of two parts together."""
        return Account(**{name: _sum(one, getattr(other, name)) for name, one in self.values().items()})


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupTotals(JsonRecord):
    """Groups of documents that are kept together."""

    groups: Count
    """Number of groups with at least one document."""

    documents_without: Count
    """Number of documents of the source without a group."""

    rows_ungrouped: Positive
    """Number of rows if the same documents were packed without groups."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanTotals(Account):
    """Totals of a plan."""

    tokens_packed: Positive
    segments: Count
    """Number of segments in all rows: documents, or parts of split documents."""

    rows: Positive
    lower_bound: Positive
    """Minimum number of rows of any packing of the same documents."""

    efficiency: Ratio
    """Tokens in segments divided by the capacity of all rows, 0 to 1."""

    groups: GroupTotals | None = None
    """Totals of groups; None if documents are not grouped."""

    @classmethod
    def of(
        cls,
        account: Account,
        *,
        max_len: int,
        segments: int,
        rows: int,
        lower_bound: int,
        groups: GroupTotals | None = None,
    ) -> PlanTotals:
        """Extend an account with facts about rows of `max_len` tokens. The other arguments set fields."""
        return PlanTotals(
            **account.values(),
            segments=segments,
            rows=rows,
            lower_bound=lower_bound,
            efficiency=account.tokens_packed / (rows * max_len),
            groups=groups,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals(PlanTotals):
    """Totals of the manifest: the totals of the plan, and counts made while tokens are read and written."""

    tokens_trained: Count
    """Number of labels in all rows that are not -100; 0 if no labels are written."""

    segments_untrained: Count
    """Number of segments without a trained token; 0 if no labels are written."""

    tokens_trained_later: Count
    """Number of trained tokens in segments that do not begin their document, and so do not see its beginning."""

    largest_id: Count | None = None
    """Largest token id or label in all rows, with padding; None for an index, whose tokens are not read."""

    tokens_trained_truncated: Count | None = None
    """Number of trained tokens that truncation cuts off; None without truncation, or without labels."""

    tokens_stripped: Count | None = None
    """Number of token ids that were padding in the source, and are not counted in `tokens`; None if there are none."""

    documents_straddling: Count | None = None
    """Number of documents with a token that is only partly in trained text; None for a source of tokens."""

    documents_untrained: Count | None = None
    """Number of documents with tokens, but without trained tokens; None for a source of tokens."""

    documents_by_gigatoken: Count | None = None
    """Number of documents that gigatoken tokenized; None if there are none. No other fact depends on gigatoken."""

    tokens_shared: Count | None = None
    """Number of tokens in no row because trees store shared beginnings of documents once; None without trees."""

    documents_rejected: Mapping[str, Count] | None = None
    """Number of documents that could not be used, by reason; None without `--on-error skip`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardEntry(JsonRecord):
    """Entry of a shard in the manifest."""

    file: str
    """File name, in the folder of the manifest."""

    rows: Positive
    tokens: Count
    """Number of tokens, without padding."""

    trained: Count
    """Number of labels that are not -100; 0 if no labels are written."""

    untrained_segments: Count
    """Number of segments without a trained token; 0 if no labels are written."""

    trained_later: Count
    """Number of trained tokens in segments that do not begin their document."""

    largest_id: int
    """Largest token id or label, with padding; -1 in an index, whose tokens are not read."""

    bytes: Count
    xxh3_128: str
    """Hexadecimal hash of the file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectedRecord(JsonRecord):
    """A line of rejected.jsonl. The message may quote values of the record."""

    document: Count
    """Index of the document in its source, as in `doc_ids`."""

    file: str
    """Name of the file, as in the manifest."""

    line: Count | None = None
    """Line of the file, counted from 1; None if the file does not consist of lines."""

    row: Count | None = None
    """Index of the record in the file, counted from 0; None if there is a line."""

    reason: str
    """One of `REASONS`."""

    message: str
    """Description of the fault."""

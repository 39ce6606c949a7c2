"""Totals of a packed dataset: every document and token of the source, counted by what happened to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from packer.facts.json_record import Count, Documents, JsonRecord, Positive, Ratio


@dataclass(frozen=True, kw_only=True, slots=True)
class Account(JsonRecord):
    """Documents and tokens of a source, counted by what became of them.

    The accounts of the parts of a source add up to that of the source.
    """

    documents: Documents
    """Documents of the source."""

    documents_split: Count
    """Documents with two or more segments in the rows, after untrained segments are dropped."""

    documents_truncated: Count
    """Documents shortened by truncation."""

    documents_dropped: Mapping[str, Count]
    """Documents without a segment, by reason."""

    tokens: Count
    """Tokens of the source: each is packed, truncated or dropped."""

    tokens_packed: Count
    """Tokens in segments, repetitions included."""

    tokens_repeated: Count
    """Tokens in segments that are also in an earlier segment of their document."""

    tokens_truncated: Count
    """Tokens cut off by truncation, including those of documents that are then dropped."""

    tokens_dropped: Mapping[str, Count]
    """Tokens of dropped documents, by reason; tokens cut off by truncation are not included."""

    @property
    def documents_packed(self) -> int:
        """Documents with at least one segment."""
        return self.documents - sum(self.documents_dropped.values())

    @property
    def tokens_lost(self) -> int:
        """Tokens that are in no segment: truncated or dropped."""
        return self.tokens_truncated + sum(self.tokens_dropped.values())

    def with_rejected(self, rejected: int) -> Account:
        """Return the account with `rejected` of the empty documents counted as "rejected" instead."""
        dropped = {**self.documents_dropped, "empty": self.documents_dropped["empty"] - rejected, "rejected": rejected}
        return replace(self, documents_dropped=dropped)

    def __add__(self, other: Account) -> Account:
        """Return the account of both; they must have the same reasons."""
        added: dict[str, Any] = {}
        others = other.values()
        for name, one in self.values().items():
            two = others[name]
            added[name] = one + two if isinstance(one, int) else {key: one[key] + two[key] for key in one}
        return Account(**added)


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupTotals(JsonRecord):
    """Groups of documents that are kept together or apart."""

    groups: Count
    """Number of groups with at least one document."""

    documents_without: Count
    """Documents of the source that are in no group."""

    rows_ungrouped: Positive
    """Number of rows if the same documents were packed without groups."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanTotals(Account):
    """Totals of a plan."""

    tokens_packed: Positive
    """Tokens in segments, repetitions included."""

    segments: Count
    """Documents, and pieces of split ones, in all rows."""

    rows: Positive
    """Number of rows."""

    pool_rows: Count
    """Rows that hold leftovers of several partitions; they are in the last shards."""

    lower_bound: Positive
    """Rows that no packing of the same documents can go below."""

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
        pool_rows: int,
        lower_bound: int,
        groups: GroupTotals | None = None,
    ) -> PlanTotals:
        """Extend an account with facts about the rows, of `max_len` tokens each; the other arguments set fields."""
        return PlanTotals(
            **account.values(),
            segments=segments,
            rows=rows,
            pool_rows=pool_rows,
            lower_bound=lower_bound,
            efficiency=account.tokens_packed / (rows * max_len),
            groups=groups,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals(PlanTotals):
    """Totals of the manifest: those of the plan, and counts made while reading and writing tokens."""

    tokens_trained: Count
    """Labels in all rows that are not -100; 0 if no labels are written."""

    segments_untrained: Count
    """Segments without a trained token; 0 if no labels are written."""

    documents_straddling: Count | None = None
    """Documents with a token that is only partly in trained text; None if the source holds tokens, not text."""

    documents_untrained: Count | None = None
    """Documents that have tokens, none of them trained; None if the source holds tokens, not text."""

    documents_rejected: Mapping[str, Count] | None = None
    """Documents that could not be used, by reason; None if one would have been an error."""

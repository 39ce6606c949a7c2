"""Accounting for every document and token of a source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from packer.plan.segments import Segments


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """Documents and tokens of a source, each counted once by outcome; the fields are totals of the manifest.

    Accounts of parts of a source add up to the account of the source.
    """

    documents: int
    """Documents of the source."""

    documents_split: int
    """Documents that are in more than one segment."""

    documents_truncated: int
    """Documents shortened by truncation."""

    documents_dropped: Mapping[str, int]
    """Documents without a segment, by reason."""

    tokens: int
    """Tokens of the source: each is packed, truncated or dropped."""

    tokens_packed: int
    """Tokens in segments, including repeated ones."""

    tokens_repeated: int
    """Tokens in segments that are also in an earlier segment of their document."""

    tokens_truncated: int
    """Tokens cut off by truncation, including those of documents that are dropped afterwards."""

    tokens_dropped: Mapping[str, int]
    """Tokens without a segment, by reason; without those cut off by truncation."""

    def __add__(self, other: Account) -> Account:
        """Add the account of another part of the source, with the same reasons."""
        added: dict[str, Any] = {}
        for field in fields(self):
            one, two = getattr(self, field.name), getattr(other, field.name)
            added[field.name] = one + two if isinstance(one, int) else {key: one[key] + two[key] for key in one}
        return Account(**added)

    @classmethod
    def of(cls, segments: Segments, *, pairs: bool, drops_untrained: bool) -> Account:
        """Count documents and tokens by outcome.

        Args:
            segments: the segments that are placed in rows.
            pairs: whether documents are preference pairs, which adds the reason "unpaired".
            drops_untrained: whether segments without trained tokens were removed, which adds the reason "untrained".
        """
        is_dropped, is_truncated = segments.long == "drop", segments.long == "truncate"
        documents_dropped = {
            "empty": segments.empty_documents,
            "too_long": segments.long_documents if is_dropped else 0,
        }
        tokens_dropped = {"too_long": segments.long_tokens if is_dropped else 0}
        if pairs:
            documents_dropped["unpaired"] = segments.unpaired_documents
            tokens_dropped["unpaired"] = segments.unpaired_tokens
        if drops_untrained:
            documents_dropped["untrained"] = segments.untrained_documents
            tokens_dropped["untrained"] = segments.untrained_tokens
        with_heads, heads = np.unique(segments.head_documents, return_counts=True)
        return cls(
            documents=segments.documents,
            documents_split=int(np.count_nonzero(heads + (segments.tails[with_heads] > 0) > 1)),
            documents_truncated=segments.long_documents if is_truncated else 0,
            documents_dropped=documents_dropped,
            tokens=int(segments.lengths.sum(dtype=np.int64)),
            tokens_packed=segments.tokens,
            tokens_repeated=segments.repeated,
            tokens_truncated=segments.truncated_tokens,
            tokens_dropped=tokens_dropped,
        )

"""Tokens of an index: columns with one value per token, copied from the mapped source with the code of packing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from packer.algorithms.index_arrays import joined_ranges
from packer.arrow import numpy_dtype
from packer.column_names import PADDING, SEGMENT_COLUMNS
from packer.errors import PackerError, SourceError
from packer.loader.open_shards import Row
from packer.shards.manifest import Manifest
from packer.shards.row_format import RowFormat
from packer.shards.writer import BadTokenError, TokenColumns, token_columns
from packer.sources.find_source import SourceLike
from packer.sources.open_source import open_index_source
from packer.sources.source import Documents, Watch
from packer.stores import AnyPath
from packer.token_memory.token_column import Spans, lengths_of


@dataclass(frozen=True, kw_only=True)
class IndexTokens:
    """Columns with one value per token for the rows of an index. After unpickling, a process maps the source itself."""

    documents: Documents
    watch: Watch
    """Watch of the source files, which must not change."""

    row_format: RowFormat
    """Format of the rows including their tokens."""

    @classmethod
    def open(cls, folder: AnyPath, manifest: Manifest, source: SourceLike | Sequence[SourceLike]) -> IndexTokens:
        """Open the source of an index; see `open_index_source`."""
        if not manifest.options.index_only:
            raise PackerError(f"{folder} holds its tokens, and source is for an index: leave source out")
        documents, watch = open_index_source(folder, manifest, source)
        row_format = RowFormat.of(replace(manifest.options, index_only=False), documents.source.value_columns())
        return cls(documents=documents, watch=watch, row_format=row_format)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.watch.check()

    @property
    def dtypes(self) -> dict[str, np.dtype[Any]]:
        """Types of the columns with one value per token, in the order of a row."""
        kept = {name: numpy_dtype(kind) for name, kind in self.row_format.kept_tokens.items()}
        return {name: np.dtype(np.int32) for name in self.row_format.token_columns} | kept

    def fill(self, rows: Sequence[Row]) -> list[Row]:
        """Return rows with their tokens, in new arrays that equal the columns of the copied dataset.

        Raises PackerError if a row does not fit the source. Raises SourceError if a file of the source has changed, or
        if a token or label is out of range.
        """
        if not rows:
            return []
        self.watch.check_again()
        stored = {name: np.concatenate([row[name] for row in rows]) for name in SEGMENT_COLUMNS if name in rows[0]}
        extents, is_real = stored["seq_lengths"].astype(np.int64), stored["doc_ids"] != PADDING
        lengths = stored.get("seq_tokens", np.where(is_real, extents, 0)).astype(np.int64)
        places = np.cumsum(extents) - extents
        of_segments = (stored["doc_ids"], stored["doc_starts"].astype(np.int64), lengths, places)
        spans = Spans(*(values[is_real] for values in of_segments))
        self._check_fit(spans)
        gaps = joined_ranges(places + lengths, extents - lengths)
        try:
            columns = token_columns(spans, gaps, extents, self._columns, self.row_format)
        except BadTokenError as bad:
            column, segment = bad.args
            document, start, length, _ = (int(values[segment]) for values in spans)
            values, largest = self._columns[column].values_at(document, start, length), self.row_format.largest_id
            fault = self.documents.value_fault(document, start, values, label=column == "labels", largest=largest)
            raise SourceError(f"{fault}, and pack it again") from bad
        by_row = {name: values.reshape(len(rows), -1, *values.shape[1:]) for name, values in columns.items()}
        return [{name: values[at] for name, values in by_row.items()} | row for at, row in enumerate(rows)]

    def _check_fit(self, spans: Spans) -> None:
        """Raise a PackerError if the source lacks a document, or a document ends before a segment."""
        last, documents = int(spans.lists.max()), self.documents.identity.documents
        if last >= documents:
            raise _misfit(f"document {last} of {documents:,}")
        ends, lengths = spans.starts + spans.lengths, np.empty(len(spans.lists), np.int32)
        lengths_of(self._columns["input_ids"].addresses, spans.lists, lengths)
        for at in np.flatnonzero(ends > lengths)[:1].tolist():
            raise _misfit(f"tokens up to {ends[at]} of {self.documents.describe(int(spans.lists[at]))}")

    @cached_property
    def _columns(self) -> TokenColumns:
        return self.documents.table.token_columns(self.row_format)


def _misfit(what: str) -> PackerError:
    return PackerError(
        f"the index refers to {what}, which the source does not have: `packer verify` finds what was changed; restore "
        "it, or pack again"
    )

"""A pass over a source that checks every document, so that they can be packed: lengths, and the source's identity."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.inputs.column_types import cast_to_common_type
from packer.inputs.documents import DocumentError, reading
from packer.inputs.token_tables import TokenTable
from packer.manifest_fields import FileIdentity, SourceIdentity
from packer.progress import Progress, silent
from packer.sources.source import Source
from packer.stores.mirror import fetch_queued


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Checked documents of a source, numbered in its order; made by `read_documents`.

    Nothing is held per document, except for lengths if they were requested. Can be pickled; addresses of columns are
    computed again.
    """

    source: Source
    """The source, which has been read to its end."""

    identity: SourceIdentity

    lengths: NDArray[np.int32] | None = None
    """(documents,) tokens of each document; None unless they were requested."""

    extra: Mapping[str, pa.ChunkedArray] = field(default_factory=dict)
    """Extra columns, one value per list; empty if they were not requested."""

    def describe(self, document: int) -> str:
        """Return the name of a document for messages: "document 17 (rows.jsonl line 18)"."""
        return self.source.describe(document)

    @cached_property
    def table(self) -> TokenTable:
        """Columns of all documents of a mapped source, by address; `lengths` is empty."""
        with reading(self.source.name):
            fetch_queued()
        return self.source.table(np.zeros(0, np.int32))

    def __getstate__(self) -> dict[str, object]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


def read_documents(
    source: Source, progress: Progress = silent, *, hold_lengths: bool = False, with_extra: bool = False
) -> Documents:
    """Check every document of a source in one pass.

    Nothing is held per document of a mapped source, unless its lengths are requested. Extra columns of a source that
    must be decoded are held, if they are requested. Raises a SourceError if the source has no documents, a document or
    file is invalid, or no type holds all values of an extra column.
    """
    seen = IdentityCounter(source)
    lengths = [np.empty(0, np.int32)]
    columns: defaultdict[str, list[pa.Array]] = defaultdict(list)
    for table in source.tables(progress):
        seen.add(table.lengths)
        if hold_lengths:
            lengths.append(table.lengths)
        if with_extra and not source.mapped:
            for name, column in table.extra.items():
                columns[name] += column.chunks
    if not seen.documents:
        raise SourceError(f"{source.name}: empty dataset: 0 documents in {len(source.files)} file(s)")
    extra = {}
    if with_extra and source.mapped:
        extra = {
            name: pa.chunked_array(list(column.chunks), column.type) for name, column in source.value_columns().items()
        }
    for name, chunks in columns.items():
        try:
            extra[name] = pa.chunked_array(cast_to_common_type([chunk for chunk in chunks if len(chunk)], name))
        except DocumentError as fault:  # with the first document that does not fit
            raise SourceError(f"{source.describe(fault.row)}: {fault.message}") from None
    return Documents(
        source=source,
        identity=seen.identity(),
        lengths=np.concatenate(lengths) if hold_lengths else None,
        extra=extra,
    )


class IdentityCounter:
    """Collects the identity of a source while its tables are read, to its end before `identity` is called."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._digest = xxhash.xxh3_128()
        self._ends, self._tokens = [0], [0]  # up to the end of each table, which never crosses files

    @property
    def documents(self) -> int:
        """Number of documents added so far."""
        return self._ends[-1]

    def add(self, lengths: NDArray[np.int32]) -> None:
        """Add the lengths of the documents of the next table."""
        self._digest.update(lengths.astype("<i4", copy=False).data)
        self._ends.append(self._ends[-1] + len(lengths))
        self._tokens.append(self._tokens[-1] + int(lengths.sum(dtype=np.int64)))

    def identity(self) -> SourceIdentity:
        """Return the identity of the source."""
        source = self._source
        rows = [count or 0 for count in source.rows]
        at_end = np.searchsorted(self._ends, np.cumsum(rows, dtype=np.int64), side="right") - 1
        tokens = np.diff(np.array(self._tokens)[at_end], prepend=0).tolist()
        return SourceIdentity(
            files=tuple(
                FileIdentity(name=file.name, bytes=file.bytes, rows=of_file, tokens=count)
                for file, of_file, count in zip(source.files, rows, tokens, strict=True)
            ),
            documents=sum(rows),
            tokens=sum(tokens),
            labels=source.has_labels,
            lengths_xxh3_128=self._digest.hexdigest(),
            columns=source.columns.extra,
            widths=source.columns.widths or None,
            text=source.text,
            indices_xxh3_128=source.order,
        )

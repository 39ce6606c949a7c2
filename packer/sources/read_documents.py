"""A pass over a source that checks every document, so that they can be packed: lengths, and the source's identity."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy
from packer.column_names import ANSWER, RECORD_IDS
from packer.errors import SourceError
from packer.inputs.column_types import cast_to_common_type
from packer.inputs.documents import DocumentError, reading
from packer.inputs.format_reader import DecodedInput
from packer.inputs.mapped_files import fetch_queued
from packer.inputs.token_tables import MappedLists, TokenTable, ValueColumn
from packer.manifest_fields import REASONS, FileIdentity, SourceIdentity
from packer.progress import Progress, documents_of, silent
from packer.sources.source import Rejections, Source
from packer.text.fast_tokens import SWITCH
from packer.token_memory import TokenColumn, list_lengths


@dataclass(frozen=True, kw_only=True)
class Documents:
    """Checked documents of a source, numbered in its order; made by `read_documents`.

    Nothing is held per document, except for lengths if they were requested. Can be pickled; addresses of columns are
    computed again.
    """

    source: Source
    """The source, which has been read to its end, with the counts and rejections of all documents."""

    identity: SourceIdentity

    lengths: NDArray[np.int32] | None = None
    """(documents,) tokens of each document; None unless they were requested."""

    extra: Mapping[str, pa.ChunkedArray] = field(default_factory=dict)
    """Extra columns, one value per list; empty if they were not requested."""

    def describe(self, document: int) -> str:
        """Return the name of a document for messages: "document 17 (rows.jsonl line 18)"."""
        return self.source.describe(document, [file.rows for file in self.identity.files])

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
    reader = DocumentReader(source, progress)
    lengths = [np.empty(0, np.int32)]
    columns: defaultdict[str, list[pa.Array]] = defaultdict(list)
    for table in reader.tables():
        if hold_lengths:
            lengths.append(table.lengths)
        if with_extra and not source.mapped:
            for name, column in table.extra.items():
                columns[name] += column.chunks
    if not reader.done:
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
            raise SourceError(f"{reader.describe(fault.row)}: {fault.message}") from None
    return replace(reader.finish(), lengths=np.concatenate(lengths) if hold_lengths else None, extra=extra)


class DocumentReader:
    """One pass over a source, which checks every document and collects the identity of the source.

    Args:
        source: the source.
        progress: callback, called with documents as "lengths", "decode" or "tokenize".
    """

    def __init__(self, source: Source, progress: Progress = silent) -> None:
        self.source = source
        self._progress = progress
        self._rows = [input_.rows for input_ in source.inputs]
        self._counts = Counter(source.counts)
        self._rejected = array("q")  # number and reason of each rejected document in turn
        self._digest = xxhash.xxh3_128()
        self._records = 0  # number of records so far, if they make any number of documents
        self._ends, self._tokens = [0], [0]  # up to the end of each table, which never crosses files

    @property
    def done(self) -> int:
        """Number of documents that have been read."""
        return self._ends[-1]

    def describe(self, document: int) -> str:
        """Return the name of a document that has been read (`Source.describe`)."""
        return self.source.describe(document, self._rows)

    def tables(self) -> Iterator[TokenTable]:
        """Yield all documents in order, in tables of bounded memory. Raises a SourceError if a document is invalid."""
        source = self.source
        stage = "lengths" if source.mapped else "tokenize" if source.encoder else "decode"
        total = sum(file.bytes for file in source.files)
        finished = 0
        for number, input_ in enumerate(source.inputs):
            first = self.done
            try:
                for table, read in self._decoded(input_) if isinstance(input_, DecodedInput) else self._mapped(input_):
                    yield table
                    self._progress(stage, *documents_of(self.done, finished + read, total))
            except DocumentError as fault:
                raise fault.in_source(first + fault.row) from None
            self._rows[number] = self.done - first
            finished += input_.file.bytes

    def _mapped(self, input_: MappedLists) -> Iterator[tuple[TokenTable, int]]:
        """Yield the documents of a mapped input, each with the bytes of its file up to their end."""
        types, first = input_.declared_types, self.done
        whole = TokenTable(
            input_ids=input_.tokens(input_.input_ids),
            labels=None if input_.labels is None else input_.tokens(input_.labels),
            lengths=np.zeros(0, np.int32),
            lists=None,
            extra={name: ValueColumn(name, kind, input_.stores) for name, kind in types.items()},
            first_document=first,
        )
        for lengths in input_.lengths(self.source.columns):
            lists = np.arange(self.done, self.done + len(lengths)) - first
            table = replace(whole, lengths=lengths, lists=lists, first_document=self.done)
            self._count(lengths)
            yield table, input_.file.bytes * (self.done - first) // max(input_.rows, 1)

    def _decoded(self, input_: DecodedInput) -> Iterator[tuple[TokenTable, int]]:
        """Yield the documents of an input that is decoded, each with the bytes of its file up to their end."""
        for batch in input_.batches():
            for one in batch.rejected:
                self._rejected.extend((self.done + one.row, REASONS.index(one.reason)))
            extra = {name: ValueColumn.of_chunks(name, [values]) for name, values in batch.extra.items()}
            if self.source.numbers_records:
                records = self._records + np.cumsum(as_numpy(batch.extra[ANSWER]) == 0)
                extra[RECORD_IDS] = ValueColumn.of_chunks(RECORD_IDS, [as_arrow(records - 1)])
                self._records = int(records[-1]) if len(records) else self._records
            table = TokenTable(
                input_ids=TokenColumn.from_arrow([batch.input_ids]),
                labels=None if batch.labels is None else TokenColumn.from_arrow([batch.labels]),
                lengths=list_lengths(batch.input_ids).astype(np.int32),
                lists=None,
                extra=extra,
                first_document=self.done,
            )
            self._count(table.lengths)
            self._counts.update(batch.counts)
            if self._counts["differing"] and self._counts["fast"]:  # which were yielded before
                raise SourceError(
                    f"{self.source.name}: gigatoken gives other tokens than tokenizers for a document, after others "
                    f"that it tokenized: set {SWITCH}=0"
                )
            yield table, batch.done

    def _count(self, lengths: NDArray[np.int32]) -> None:
        self._digest.update(lengths.astype("<i4", copy=False).data)
        self._ends.append(self._ends[-1] + len(lengths))
        self._tokens.append(self._tokens[-1] + int(lengths.sum(dtype=np.int64)))

    def finish(self) -> Documents:
        """Return the documents, once all tables have been read."""
        source = self.source
        rows = tuple(count or 0 for count in self._rows)
        at_end = np.searchsorted(self._ends, np.cumsum(rows, dtype=np.int64), side="right") - 1
        tokens = np.diff(np.array(self._tokens)[at_end], prepend=0).tolist()
        identity = SourceIdentity(
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
        )
        if not source.mapped:
            source = replace(source, counts=self._counts, rejections=Rejections.of(self._rejected))
        return Documents(source=source, identity=identity)

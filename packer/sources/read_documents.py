"""A pass over a source that checks every document, so that they can be packed: lengths, and the source's identity."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy
from packer.column_names import ANSWER, RECORD_IDS
from packer.errors import SourceError
from packer.json_records import REASONS, FileIdentity, SourceIdentity
from packer.progress import Progress, documents_of, silent
from packer.sources.column_types import cast_to_common_type
from packer.sources.documents import Batch, DocumentError, reading, value_message, wrong_values
from packer.sources.format_reader import DecodedInput, Input
from packer.sources.mapped_files import fetch_queued
from packer.sources.source import Rejections, Source
from packer.sources.token_tables import TokenTable
from packer.token_memory import list_lengths


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
        number = document
        for input_, file in zip(self.source.inputs, self.identity.files, strict=True):
            if number < file.rows:
                return f"document {document} ({input_.place(number)})"
            number -= file.rows
        return f"document {document}"

    def value_fault(self, document: int, start: int, values: NDArray[np.integer], *, label: bool) -> str:
        """Return a message that names the first of some values of a document that is not a token id, or not a label.

        `start` is the position of the first of these values in the document.
        """
        position = int(wrong_values(values, label=label).argmax())
        name = self.source.token_column(label=label)
        message = value_message(name, int(values[position]), start + position, label=label)
        return f"{self.describe(document)}: {message}"

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
    stage = "lengths" if source.mapped else "tokenize" if source.encoder else "decode"
    size = sum(file.bytes for file in source.files)
    digest, counts, rejected = xxhash.xxh3_128(), Counter(source.counts), array("q")
    held, columns = [np.empty(0, np.int32)], defaultdict[str, list[pa.Array]](list)
    files, done, finished = list[FileIdentity](), 0, 0
    for input_ in source.inputs:
        first, tokens = done, 0
        try:
            for lengths, read, batch in _lengths(input_):
                if batch is not None:
                    for one in batch.rejected:
                        rejected.extend((done + one.row, REASONS.index(one.reason)))
                    for name, values in batch.extra.items() if with_extra else ():
                        columns[name].append(values)
                    counts.update(batch.counts)
                if hold_lengths:
                    held.append(lengths)
                digest.update(lengths.astype("<i4", copy=False).data)
                done, tokens = done + len(lengths), tokens + int(lengths.sum(dtype=np.int64))
                progress(stage, *documents_of(done, finished + read, size))
        except DocumentError as fault:
            raise fault.in_source(first + fault.row) from None
        file = input_.file
        files.append(FileIdentity(name=file.name, bytes=file.bytes, rows=done - first, tokens=tokens))
        finished += file.bytes
    if not done:
        raise SourceError(f"{source.name}: empty dataset: 0 documents in {len(source.files)} file(s)")
    if not source.mapped:
        source = replace(source, counts=counts, rejections=Rejections.of(rejected))
    documents = Documents(
        source=source,
        identity=SourceIdentity(
            files=tuple(files),
            documents=done,
            tokens=sum(file.tokens for file in files),
            labels=source.has_labels,
            lengths_xxh3_128=digest.hexdigest(),
            columns=source.columns.extra,
            widths=source.columns.widths or None,
            text=source.text,
        ),
        lengths=np.concatenate(held) if hold_lengths else None,
    )
    return replace(documents, extra=_extra(documents, columns)) if with_extra else documents


def _lengths(input_: Input) -> Iterator[tuple[NDArray[np.int32], int, Batch | None]]:
    """Yield the lengths of documents, the bytes of the file up to their end, and their batch if they are decoded."""
    if isinstance(input_, DecodedInput):
        for batch in input_.batches():
            yield list_lengths(batch.input_ids).astype(np.int32), batch.done, batch
        return
    done = 0
    for lengths in input_.lengths():
        done += len(lengths)
        yield lengths, input_.file.bytes * done // max(input_.rows, 1), None


def _extra(documents: Documents, columns: Mapping[str, Sequence[pa.Array]]) -> dict[str, pa.ChunkedArray]:
    """Return the extra columns of documents, given the parts of those that were decoded."""
    source = documents.source
    if source.mapped:
        found = source.value_columns().items()
        return {name: pa.chunked_array(list(column.chunks), column.type) for name, column in found}
    extra = {}
    for name, chunks in columns.items():
        try:
            extra[name] = pa.chunked_array(cast_to_common_type([chunk for chunk in chunks if len(chunk)], name))
        except DocumentError as fault:  # with the first document that does not fit
            raise SourceError(f"{documents.describe(fault.row)}: {fault.message}") from None
    if source.numbers_records:
        extra[RECORD_IDS] = pa.chunked_array([as_arrow(np.cumsum(as_numpy(extra[ANSWER].combine_chunks()) == 0) - 1)])
    return extra

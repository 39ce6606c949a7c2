"""A source: its inputs in order, as one sequence of documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.gather import TokenColumn
from packer.progress import Progress, silent
from packer.sources.checking import checked
from packer.sources.column_checks import check_indices, one_type
from packer.sources.column_types import join_by_name
from packer.sources.decoded_size import SpillSize, spill_size
from packer.sources.documents import Batch, Columns, DocumentError, Input, SourceFile, Tokenized, TokenTable, reading
from packer.sources.lengths import document_lengths, fault_of_row
from packer.sources.mapped_lists import MappedLists
from packer.sources.source_order import OwnOrder
from packer.sources.spill import spill_inputs
from packer.sources.survey import SourceSurvey, survey_source
from packer.sources.value_column import ValueColumn

_STEP = 1 << 20  # documents of a table that goes through an indices mapping


class Source:
    """Documents in a fixed order, from one or more inputs, opened and ready to read.

    Nothing is held but what maps the files and the addresses of their lists; every pass checks what it reads. A mapped
    source can be pickled: where it is unpickled, its files are mapped again by their paths.
    """

    side_count = 1
    """Number of lists per document of the inputs: 2 for preference pairs (chosen, rejected), otherwise 1."""

    def __init__(
        self,
        name: str,
        inputs: tuple[Input, ...],
        columns: Columns,
        indices: NDArray[np.int64] | NDArray[np.uint64] | None = None,
        tokenized: Tokenized | None = None,
        pad_id: int | None = None,
    ) -> None:
        self.name = name
        self.inputs = inputs
        self.columns = columns
        self.indices = indices
        self.tokenized = tokenized
        self.pad_id = pad_id  # of the tokenizer: its padding, or its end of a sequence; None where it is not known
        self._rows = [given.rows for given in inputs]  # None until it has been read to its end
        if indices is not None:
            check_indices(name, indices, sum(count or 0 for count in self._rows))

    @property
    def sources(self) -> dict[str, Source]:
        """The source itself under the name "", as `Mixture.sources` has those of a mixture."""
        return {"": self}

    def columns_of(self, number: int) -> Columns:
        """The columns that are read of an input."""
        return self.columns

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The files in order; a dataset in memory counts as one."""
        return tuple(given.file for given in self.inputs)

    @property
    def mapped(self) -> bool:
        """Whether all documents can be addressed in memory, so that `table` works and `spill` has nothing to do."""
        return all(given.mapped for given in self.inputs)

    @property
    def has_labels(self) -> bool:
        """Whether every document has labels (or none has)."""
        return any(given.has_labels for given in self.inputs)

    @property
    def rows(self) -> list[int | None]:
        """Lists of each input, None for one that tells only when it has been read to its end."""
        return list(self._rows)

    @property
    def order(self) -> NDArray[np.int64] | NDArray[np.uint64] | None:
        """Shape (documents,): the list of the inputs, one after the other, that each document is; None: its own."""
        return self.indices

    def tables(self, progress: Progress = silent) -> Iterator[TokenTable]:
        """Yield all documents in order, checked, in tables of bounded memory.

        A pass over text counts, in `tokenized`, the documents that straddle a border of what is trained, and those
        of which nothing is trained.

        Args:
            progress: told of "lengths", "decode" or "tokenize", in bytes of the files.

        Raises:
            SourceError: a document is wrong, or a file is truncated or corrupt.
        """
        if self.indices is not None:
            yield from self._mapped_tables(self.indices, progress)
            return
        stage = "lengths" if self.mapped else "tokenize" if self.tokenized else "decode"
        total = sum(file.bytes for file in self.files)
        first_document = finished = straddling = untrained = 0
        for number, given in enumerate(self.inputs):
            row = 0
            try:
                for batch, lengths in checked(given, self.columns):
                    progress(stage, finished + batch.done, total)
                    yield _table(batch, lengths, first_document + row)
                    row += len(lengths)
                    straddling, untrained = straddling + batch.straddling, untrained + batch.untrained
            except DocumentError as fault:
                raise fault.in_source(first_document + fault.row) from None
            self._rows[number] = row
            first_document += row
            finished += given.file.bytes
        if self.tokenized is not None and not self.mapped:  # what is decoded has been counted then
            self.tokenized = replace(self.tokenized, straddling=straddling, untrained=untrained)

    def table(self, lengths: NDArray[np.int32]) -> TokenTable:
        """All documents by address; for a mapped source that `scan` has checked.

        Args:
            lengths: (documents,) as `scan` gave them.
        """
        assert self.mapped, "spill first"
        return TokenTable(
            input_ids=TokenColumn.joined([given.tokens(given.input_ids) for given in self._mapped_inputs()]),
            labels=TokenColumn.joined([given.tokens(given.labels) for given in self._mapped_inputs() if given.labels])
            if self.has_labels
            else None,
            lengths=lengths,
            rows=self.indices,
            extra=self.value_columns(),
            first_document=0,
        )

    def describe(self, document: int) -> str:
        """Name a document for a message: "document 17 (rows.jsonl line 18)"."""
        return self._named(document, document if self.indices is None else int(self.indices[document]))

    def _named(self, document: int, row: int) -> str:
        """Name a document for a message by a row of the inputs, one after the other."""
        for given, rows in zip(self.inputs, self._rows, strict=True):
            if rows is None or row < rows:  # None: it is being read, and those before it have been
                return f"document {document} ({given.place(row)})"
            row -= rows
        return f"document {document}"

    def spill_size(self, folder: Path) -> SpillSize:
        """Estimate what `spill` is going to write into this folder."""
        return spill_size(self, folder)

    def spill(
        self,
        folder: Path,
        progress: Progress = silent,
        *,
        workers: int = 1,
        kinds: Mapping[str, pa.DataType] = {},
    ) -> Source:
        """Decode once what cannot be mapped, as Arrow streams in `folder`; what is there from before is reused.

        The source that comes back is mapped; it keeps the original names and sizes, and names documents as before.

        Args:
            folder: made if it does not exist.
            progress: told of "decode" or "tokenize", in bytes of the original files.
            workers: threads at work; the streams are the same for any number, and so is what is raised.
            kinds: types of other columns that must be held as well, as other sources have them.

        Raises:
            SourceError: a document is wrong, holds a value outside int32, or a file is truncated or corrupt; or a
                column beside the tokens has no type that holds all of its values.
            PackerError: the folder cannot be written.
        """
        inputs, counts = spill_inputs(self, folder, progress, workers, kinds=kinds)
        tokenized = self.tokenized
        if tokenized is not None:
            tokenized = replace(tokenized, straddling=counts["straddling"], untrained=counts["untrained"])
        columns = Columns("input_ids", "labels", self.columns.extra)
        return Source(self.name, inputs, columns, self.indices, tokenized, self.pad_id)

    def survey(
        self,
        progress: Progress = silent,
        *,
        with_extra: bool = False,
        on_table: Callable[[TokenTable], None] = lambda table: None,
    ) -> SourceSurvey:
        """Check every document in one pass; see `survey_source`."""
        return survey_source(self, progress, with_extra=with_extra, on_table=on_table)

    def in_source_order(self) -> OwnOrder:
        """Return the documents to be compared with rows, in their own order."""
        return OwnOrder(self)

    def extra(self) -> dict[str, pa.ChunkedArray]:
        """The other columns of a mapped source, a value per list; all of their chunks are held.

        Raises:
            SourceError: a column is not of the same type in all files.
        """
        columns = self.value_columns()
        return {name: pa.chunked_array(list(column.chunks), column.type) for name, column in columns.items()}

    def value_columns(self) -> dict[str, ValueColumn]:
        """The other columns of a mapped source, a value per list, where they lie.

        Raises:
            SourceError: a column is not of the same type in all files.
        """
        stores = [(given.file.name, store) for given in self._mapped_inputs() for store in given.stores]
        stores = [(file, store) for file, store in stores if len(store.ends)]
        return {
            name: ValueColumn(
                name,
                one_type(self.name, name, [(file, store.type_of(name)) for file, store in stores]),
                tuple(store for _, store in stores),
            )
            for name in self.columns.extra
        }

    def extra_types(self) -> dict[str, pa.DataType]:
        """The types of the other columns of a mapped source, by name; those of files without documents left out."""
        stores = [(given.extra, store) for given in self._mapped_inputs() for store in given.stores if len(store.ends)]
        return join_by_name([{name: store.type_of(name) for name in names} for names, store in stores])

    def _mapped_inputs(self) -> tuple[MappedLists, ...]:
        return tuple(given for given in self.inputs if isinstance(given, MappedLists))

    def _mapped_tables(
        self, indices: NDArray[np.int64] | NDArray[np.uint64], progress: Progress
    ) -> Iterator[TokenTable]:
        """Yield the documents that an indices mapping selects; what it leaves out may be wrong."""
        if not self.mapped:
            raise unmapped_under_indices(self.name)
        with reading(self.name):
            parts = [
                document_lengths(batch.input_ids, batch.labels, batch.per_token(self.columns))
                for batch in self._mapped_batches()
            ]
        all_lengths = np.concatenate([np.zeros(0, np.int32), *parts])
        table = self.table(all_lengths)
        total = sum(file.bytes for file in self.files)
        for start in range(0, len(indices), _STEP):
            rows = indices[start : start + _STEP]
            lengths = all_lengths[rows]
            wrong = np.flatnonzero(lengths < 0)
            if len(wrong):
                row = int(rows[wrong[0]])
                fault = self._fault_of_row(row, int(all_lengths[row]))
                raise SourceError(f"{self.describe(start + int(wrong[0]))}: {fault.message}")
            progress("lengths", total * (start + len(rows)) // len(indices), total)
            yield replace(table, lengths=lengths, rows=rows, first_document=start)

    def _mapped_batches(self) -> Iterator[Batch]:
        for given in self._mapped_inputs():
            yield from given.batches()

    def _fault_of_row(self, row: int, mark: int) -> DocumentError:
        """Say what is wrong with a row of the inputs, one after the other, given what stands in place of its length."""
        for batch in self._mapped_batches():
            count = sum(map(len, batch.input_ids))
            if row < count:
                return fault_of_row(batch, row, mark, self.columns)
            row -= count
        raise AssertionError(row)


def unmapped_under_indices(name: str) -> SourceError:
    """What to say of a source that must be decoded, and whose documents are not in the order of its files."""
    return SourceError(
        f"{name}: masks or compressed data under an indices mapping can be packed, but not read as a "
        "stream; save it again after .flatten_indices()"
    )


def _table(batch: Batch, lengths: NDArray[np.int32], first_document: int) -> TokenTable:
    return TokenTable(
        input_ids=TokenColumn.from_arrow(batch.input_ids),
        labels=TokenColumn.from_arrow(batch.labels) if batch.labels is not None else None,
        lengths=lengths,
        rows=None,
        extra={name: ValueColumn.of_chunks(name, chunks) for name, chunks in batch.extra.items()}
        if batch.input_ids
        else {},
        first_document=first_document,
    )

"""A source: one or more inputs in order, read as one sequence of documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.engine import Engine, Threads
from packer.errors import SourceError
from packer.facts.rejection import REMEDY
from packer.gather import TokenColumn
from packer.progress import Progress, documents_of, silent
from packer.sources.columns.column_checks import check_indices, one_type
from packer.sources.columns.column_types import join_by_name
from packer.sources.columns.list_checks import checked, document_error, document_lengths, table_of
from packer.sources.decoding.decoded_pieces import SpillSize, spill_size
from packer.sources.decoding.decoded_streams import COLUMNS
from packer.sources.decoding.spill import spill_inputs
from packer.sources.documents import Batch, Columns, DocumentError, Input, SourceFile, Tokenized, TokenTable, reading
from packer.sources.mapped.mapped_lists import MappedLists
from packer.sources.mapped.record_batches import ValueColumn
from packer.sources.rejections import RejectionCollector, Rejections
from packer.sources.survey import SourceSurvey, survey_source
from packer.stores import AnyPath

_STEP = 1 << 20  # documents of a table under an indices mapping


class Source:
    """Documents in a fixed order, from one or more inputs, opened and ready to read.

    A source holds no documents, only mappings of files and addresses of lists; every pass checks what it reads. A
    mapped source can be pickled; unpickling maps its files again by path.

    Lists are numbered from 0 across all inputs. Document i is list i, unless the source has an indices mapping.
    """

    side_count = 1
    """Number of lists per document of the inputs: 2 for preference pairs (chosen, rejected), otherwise 1."""

    documents_per_record = 1
    """Number of documents that a record of the files makes: 2 for preference pairs, otherwise 1."""

    def __init__(
        self,
        name: str,
        inputs: tuple[Input, ...],
        columns: Columns,
        indices: NDArray[np.int64] | NDArray[np.uint64] | None = None,
        tokenized: Tokenized | None = None,
        pad_id: int | None = None,
        *,
        skips: bool = False,
        rejections: Rejections | None = None,
        holds_chats: bool = False,
    ) -> None:
        self.name = name
        self.inputs = inputs
        self.columns = columns
        self.indices = indices
        self.tokenized = tokenized
        self.pad_id = pad_id  # padding or end-of-sequence token of the tokenizer; None if unknown
        self.holds_chats = holds_chats  # text with a chat template, or tokens with the column "turn_starts"
        self.skips = skips  # whether documents that cannot be used are rejected, and empty
        self.rejections = rejections or Rejections()  # known once the source has been decoded or read
        self._rows = [input_.rows for input_ in inputs]  # None until the input has been read to its end
        if indices is not None:
            check_indices(name, indices, sum(count or 0 for count in self._rows))

    @property
    def records(self) -> Source:
        """The source to decode, whose lists are the records of the files: itself, except for pairs of text."""
        return self

    @property
    def stored_columns(self) -> Columns:
        """Names of the columns of decoded streams."""
        return COLUMNS._replace(extra=self.columns.extra)

    def columns_of(self, number: int) -> Columns:
        """Return the columns to read from an input."""
        return self.columns

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """Files in order; a dataset in memory counts as one."""
        return tuple(input_.file for input_ in self.inputs)

    @property
    def mapped(self) -> bool:
        """Whether all documents can be addressed in memory, so that `table` works and `spill` has nothing to do."""
        return all(input_.mapped for input_ in self.inputs)

    @property
    def has_labels(self) -> bool:
        """Whether the documents have labels: either all have, or none has."""
        return any(input_.has_labels for input_ in self.inputs)

    @property
    def rows(self) -> list[int | None]:
        """Number of lists in each input; None if it is known only after reading the input."""
        return list(self._rows)

    @property
    def order(self) -> NDArray[np.int64] | NDArray[np.uint64] | None:
        """List of each document, shape (documents,); None if document i is list i."""
        return self.indices

    def tables(self, progress: Progress = silent) -> Iterator[TokenTable]:
        """Yield all documents in order, checked, in tables of bounded memory.

        A pass over a source that must be decoded updates `rejections`, and one over text the counts in `tokenized`.

        Args:
            progress: callback, called with "lengths", "decode" or "tokenize", in documents.

        Raises:
            SourceError: a document is invalid, or a file is truncated or corrupt.
        """
        if self.indices is not None:
            yield from self._mapped_tables(self.indices, progress)
            return
        stage = "lengths" if self.mapped else "tokenize" if self.tokenized else "decode"
        total = sum(file.bytes for file in self.files)
        first_document = finished = 0
        counts: Counter[str] = Counter()
        rejected = RejectionCollector()
        for number, input_ in enumerate(self.inputs):
            row = 0
            try:
                for batch, lengths in checked(input_, self.columns):
                    rejected.add_batch(first_document + row, batch)
                    yield table_of(batch, lengths, first_document + row)
                    row += len(lengths)
                    progress(stage, *documents_of(first_document + row, finished + batch.done, total))
                    counts.update(batch.counts)
            except DocumentError as fault:
                raise fault.in_source(first_document + fault.row) from None
            self._rows[number] = row
            first_document += row
            finished += input_.file.bytes
        if self.mapped:  # `spill` has counted for decoded copies
            return
        self.rejections = rejected.finish()
        if self.tokenized is not None:
            self.tokenized = replace(self.tokenized, counts=counts)

    def table(self, lengths: NDArray[np.int32]) -> TokenTable:
        """Return all documents by address; the source must be mapped and checked.

        Args:
            lengths: (documents,) tokens of each document, as its survey returns them.
        """
        assert self.mapped, "spill first"
        mapped = self._mapped_inputs()
        labels = [input_.tokens(input_.labels) for input_ in mapped if input_.labels]
        return TokenTable(
            input_ids=TokenColumn.joined([input_.tokens(input_.input_ids) for input_ in mapped]),
            labels=TokenColumn.joined(labels) if self.has_labels else None,
            lengths=lengths,
            lists=self.indices,
            extra=self.value_columns(),
            first_document=0,
        )

    def describe(self, document: int) -> str:
        """Return the name of a document for messages: "document 17 (rows.jsonl line 18)"."""
        return self._named(document, document if self.indices is None else int(self.indices[document]))

    def _named(self, document: int, number: int) -> str:
        """Return the name of a document for messages, given its list."""
        for input_, rows in zip(self.inputs, self._rows, strict=True):
            if rows is None or number < rows:  # None: this input is being read
                return f"document {document} ({input_.place(number)})"
            number -= rows
        return f"document {document}"

    def spill_size(self, folder: AnyPath) -> SpillSize:
        """Estimate how much `spill` will write to `folder`."""
        return spill_size(self, folder)

    def spill(
        self,
        folder: AnyPath,
        progress: Progress = silent,
        *,
        engine: Engine = Threads(),  # noqa: B008 (immutable)
        kinds: Mapping[str, pa.DataType] = {},
    ) -> Source:
        """Decode inputs that cannot be mapped to Arrow streams in `folder`, reusing complete ones from earlier.

        The returned source is mapped. It keeps the names and sizes of the original files, and the names of documents.

        Args:
            folder: folder for the streams, created if missing.
            progress: callback, called with "decode" or "tokenize", in bytes of the original files.
            engine: decides what this process decodes; neither the streams nor the errors of one process depend on it.
            kinds: types that the extra columns must be able to hold, because other sources of a mixture have them.

        Raises:
            SourceError: a document is invalid or has a value outside int32; a file is truncated or corrupt; or no type
                holds all values of an extra column.
            PackerError: the folder cannot be written.
        """
        inputs, counts, rejections = spill_inputs(self, folder, progress, engine, kinds=kinds)
        tokenized = self.tokenized
        if tokenized is not None:
            tokenized = replace(tokenized, counts=counts)
        same = self.stored_columns, self.indices, tokenized, self.pad_id
        chats = self.holds_chats
        return Source(self.name, inputs, *same, skips=self.skips, rejections=rejections, holds_chats=chats)

    def survey(
        self,
        progress: Progress = silent,
        *,
        with_extra: bool = False,
        on_table: Callable[[TokenTable], None] = lambda table: None,
    ) -> SourceSurvey:
        """Check every document in one pass; see `survey_source`."""
        return survey_source(self, progress, with_extra=with_extra, on_table=on_table)

    def extra(self) -> dict[str, pa.ChunkedArray]:
        """Return the extra columns of a mapped source, one value per list, with all chunks decoded.

        Raises:
            SourceError: a column has different types in different files.
        """
        columns = self.value_columns()
        return {name: pa.chunked_array(list(column.chunks), column.type) for name, column in columns.items()}

    def value_columns(self) -> dict[str, ValueColumn]:
        """Return the extra columns of a mapped source, one value per list, decoded on demand.

        Raises:
            SourceError: a column has different types in different files.
        """
        stores = [(input_.file.name, store) for input_ in self._mapped_inputs() for store in input_.stores]
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
        """Return the types of the extra columns of a mapped source; files without documents do not count."""
        return join_by_name(
            {name: store.type_of(name) for name in input_.extra}
            for input_ in self._mapped_inputs()
            for store in input_.stores
            if len(store.ends)
        )

    def _mapped_inputs(self) -> tuple[MappedLists, ...]:
        return tuple(input_ for input_ in self.inputs if isinstance(input_, MappedLists))

    def _mapped_tables(
        self, indices: NDArray[np.int64] | NDArray[np.uint64], progress: Progress
    ) -> Iterator[TokenTable]:
        """Yield the documents that an indices mapping selects; the others may be invalid."""
        if not self.mapped:
            raise indices_need_mapping(self.name)
        with reading(self.name):
            parts = [
                document_lengths(batch.input_ids, batch.labels, batch.per_token(self.columns))
                for batch in self._mapped_batches()
            ]
        all_lengths = np.concatenate([np.zeros(0, np.int32), *parts])
        table = self.table(all_lengths)
        for start in range(0, len(indices), _STEP):
            lists = indices[start : start + _STEP]
            lengths = all_lengths[lists]
            wrong = np.flatnonzero(lengths < 0)
            if len(wrong):
                number = int(lists[wrong[0]])
                fault = self._fault_of_list(number, int(all_lengths[number]))
                raise SourceError(f"{self.describe(start + int(wrong[0]))}: {fault.message}; {REMEDY}")
            progress("lengths", start + len(lists), len(indices))
            yield replace(table, lengths=lengths, lists=lists, first_document=start)

    def _mapped_batches(self) -> Iterator[Batch]:
        for input_ in self._mapped_inputs():
            yield from input_.batches()

    def _fault_of_list(self, number: int, mark: int) -> DocumentError:
        """Return the error for a list with this mark instead of a length."""
        for batch in self._mapped_batches():
            count = sum(map(len, batch.input_ids))
            if number < count:
                return document_error(batch, number, mark, self.columns)
            number -= count
        raise AssertionError(number)


def indices_need_mapping(name: str) -> SourceError:
    """Return the error for a source that must be decoded but has an indices mapping."""
    return SourceError(
        f"{name}: masks, rejected documents or compressed data under an indices mapping can be packed, but not read as "
        "a stream; save it again after .flatten_indices()"
    )

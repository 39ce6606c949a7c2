"""A source: one or more inputs in order, read as one sequence of documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.column_names import ROLE
from packer.errors import SourceError
from packer.facts.rejection import REMEDY
from packer.gather import TokenColumn
from packer.inputs.column_types import check_indices, join_by_name, one_type
from packer.inputs.document_errors import DocumentError, reading
from packer.inputs.documents import Batch, Columns, Input, SourceFile, Tokenized
from packer.inputs.list_checks import checked, document_error, document_lengths
from packer.inputs.token_tables import MappedLists, TokenTable, ValueColumn, table_of
from packer.progress import Progress, documents_of, silent
from packer.sources.pairs import REJECTED, roles_in_turn, roles_of_lists
from packer.sources.rejections import RejectionCollector, Rejections
from packer.text.fast_tokens import SWITCH

_STEP = 1 << 20  # documents of a table under an indices mapping


@dataclass(kw_only=True)
class Source:
    """Documents in a fixed order, from one or more inputs, opened and ready to read.

    A source holds no documents, only mappings of files and addresses of lists; every pass checks what it reads. A
    mapped source can be pickled; unpickling maps its files again by path.

    Lists are numbered from 0 across all inputs. Document i is list i, unless the source has an indices mapping, as
    mapped preference pairs always have.
    """

    name: str
    """Name of the source in messages."""

    inputs: tuple[Input, ...]
    """Files in order; a dataset in memory counts as one."""

    columns: Columns
    """Columns to read from every input; for pairs, those of the chosen answers."""

    indices: NDArray[np.int64] | NDArray[np.uint64] | None = None
    """(documents,) list of each document; None if document i is list i."""

    tokenized: Tokenized | None = None
    """Facts about text; None for tokens."""

    pad_id: int | None = None
    """Padding or end-of-sequence token of the tokenizer; None if unknown."""

    skips: bool = False
    """Whether documents that cannot be used are rejected, and empty."""

    pairs: bool = False
    """Whether documents 2i and 2i + 1 are the chosen and the rejected answer of a preference pair."""

    holds_chats: bool = False
    """Whether documents are text with a chat template, or tokens with the column "turn_starts"."""

    rejections: Rejections = field(default_factory=Rejections)
    """Rejected documents, known once the source has been decoded or read."""

    rows: list[int | None] = field(init=False)
    """Number of lists in each input; None until the input has been read to its end."""

    def __post_init__(self) -> None:
        self.rows = [input_.rows for input_ in self.inputs]
        if self.indices is not None:
            check_indices(self.name, self.indices, sum(count or 0 for count in self.rows))

    @property
    def listed_inputs(self) -> tuple[Input, ...]:
        """Inputs as manifests list their files: those of pairs once for each side, which mapped pairs have anyway."""
        return self.inputs * 2 if self.pairs and not self.mapped else self.inputs

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """Files in the order of `listed_inputs`."""
        return tuple(input_.file for input_ in self.listed_inputs)

    @property
    def mapped(self) -> bool:
        """Whether all documents can be addressed in memory, so that `table` works and nothing has to be decoded."""
        return all(isinstance(input_, MappedLists) for input_ in self.inputs)

    @property
    def has_labels(self) -> bool:
        """Whether the documents have labels: either all have, or none has."""
        return any(input_.has_labels for input_ in self.inputs)

    def tables(self, progress: Progress = silent) -> Iterator[TokenTable]:
        """Yield all documents in order, checked, in tables of bounded memory; a SourceError if one is invalid.

        A pass over a source that must be decoded updates `rejections`, and one over text the counts in `tokenized`.
        Progress is reported in documents, as "lengths", "decode" or "tokenize".
        """
        if self.indices is not None:
            yield from self._mapped_tables(self.indices, progress)
            return
        stage = "lengths" if self.mapped else "tokenize" if self.tokenized else "decode"
        total = sum(input_.file.bytes for input_ in self.inputs)
        first_document = finished = 0
        counts: Counter[str] = Counter()
        rejected = RejectionCollector()
        for number, input_ in enumerate(self.inputs):
            row = 0
            try:
                for batch, lengths in checked(input_, self.columns):
                    rejected.add(first_document + row, batch.rejected)
                    yield self._table_of(batch, lengths, first_document + row)
                    row += len(lengths)
                    progress(stage, *documents_of(first_document + row, finished + batch.done, total))
                    counts.update(batch.counts)
                    if counts["differing"] and counts["fast"]:  # which were yielded before
                        raise SourceError(
                            f"{self.name}: gigatoken gives other tokens than tokenizers for a document, after others "
                            f"that it tokenized: set {SWITCH}=0"
                        )
            except DocumentError as fault:
                raise fault.in_source(first_document + fault.row) from None
            self.rows[number] = row
            first_document += row
            finished += input_.file.bytes
        if self.mapped:  # `spill_source` has counted for decoded copies
            return
        self.rejections = rejected.finish()
        if self.tokenized is not None:
            self.tokenized = replace(self.tokenized, counts=counts)

    def _table_of(self, batch: Batch, lengths: NDArray[np.int32], first_document: int) -> TokenTable:
        table = table_of(batch, lengths, first_document)
        if not self.pairs:
            return table
        return replace(table, extra={**table.extra, ROLE: roles_in_turn(first_document, len(lengths))})

    def table(self, lengths: NDArray[np.int32]) -> TokenTable:
        """Return all documents of a mapped, checked source by address, given the length of each."""
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
        number = document if self.indices is None else int(self.indices[document])
        for input_, rows in zip(self.inputs, self.rows, strict=True):
            if rows is None or number < rows:  # None: this input is being read
                return f"document {document} ({input_.place(number)})"
            number -= rows
        return f"document {document}"

    def extra(self) -> dict[str, pa.ChunkedArray]:
        """Return the extra columns of a mapped source, one value per list, with all chunks decoded."""
        columns = self.value_columns()
        return {name: pa.chunked_array(list(column.chunks), column.type) for name, column in columns.items()}

    def token_column(self, document: int, *, label: bool) -> str:
        """Return the name of the column with the tokens or labels of a document, for messages."""
        columns = REJECTED if self.pairs and document % 2 else self.columns
        return columns.labels if label else columns.input_ids

    def value_columns(self) -> dict[str, ValueColumn]:
        """Return the extra columns of a mapped source and the roles of pairs, one value per list, decoded on demand.

        A SourceError is raised if a column has different types in different files.
        """
        stores = [(input_.file.name, store) for input_ in self._mapped_inputs() for store in input_.stores]
        stores = [(file, store) for file, store in stores if len(store.ends)]
        columns = {
            name: ValueColumn(
                name,
                one_type(self.name, name, [(file, store.schema.field(name).type) for file, store in stores]),
                tuple(store for _, store in stores),
            )
            for name in self.columns.extra
        }
        if self.pairs:
            columns[ROLE] = roles_of_lists(sum(count or 0 for count in self.rows) // 2)
        return columns

    def extra_types(self) -> dict[str, pa.DataType]:
        """Return the types of the extra columns of a mapped source; files without documents do not count."""
        return join_by_name(
            {name: store.schema.field(name).type for name in input_.extra}
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
            raise SourceError(
                f"{self.name}: masks, rejected documents or compressed data under an indices mapping can be packed, "
                "but not read as a stream; save it again after .flatten_indices()"
            )
        with reading(self.name):
            batches = (batch for input_ in self._mapped_inputs() for batch in input_.batches())
            parts = [document_lengths(batch, self.columns) for batch in batches]
        all_lengths = np.concatenate([np.zeros(0, np.int32), *parts])
        table = self.table(all_lengths)
        for start in range(0, len(indices), _STEP):
            lists = indices[start : start + _STEP]
            lengths = all_lengths[lists]
            wrong = np.flatnonzero(lengths < 0)
            if len(wrong):
                number = int(lists[wrong[0]])
                fault = self._fault_of_list(number)
                raise SourceError(f"{self.describe(start + int(wrong[0]))}: {fault.message}; {REMEDY}")
            progress("lengths", start + len(lists), len(indices))
            yield replace(table, lengths=lengths, lists=lists, first_document=start)

    def _fault_of_list(self, number: int) -> DocumentError:
        """Return the error for an invalid list."""
        for input_ in self._mapped_inputs():
            columns = self.columns._replace(input_ids=input_.input_ids, labels=input_.labels or self.columns.labels)
            for batch in input_.batches():
                count = sum(map(len, batch.input_ids))
                if number < count:
                    return document_error(batch, number, columns)
                number -= count
        raise AssertionError(number)

"""Decode blocks of records, each of which makes one document or several; leave out those that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from packer.arrow import as_arrow
from packer.column_names import ANSWER
from packer.inputs.documents import Batch, DocumentError, joined_batches
from packer.inputs.format_reader import Block, BlockRecords, Reader, values_of_column
from packer.inputs.list_checks import Faults, rejection
from packer.sources.shared_prefixes import numbers_within


@dataclass(frozen=True, slots=True)
class RecordDecoder:
    """Decodes the blocks of a reader to documents and the columns that are kept of their records."""

    reader: Reader
    decode: Callable[[BlockRecords], Batch]
    """Function to a batch of one chunk, with `records`; its DocumentErrors have the number of a record."""
    empty: Batch
    """Takes the place of the documents of a record that cannot be used."""
    needed: tuple[str, ...]
    kept: tuple[str, ...]
    skips: bool
    """Whether records that cannot be used are rejected."""
    documents_per_record: int | None
    """None if records differ; the column `answer` numbers the documents of each then."""

    def __call__(self, block: tuple[Block, int]) -> Batch:
        """Decode a block."""
        content, done = block
        records, faults = self.reader.records(content, self.needed)
        try:
            batch, kept = self._decoded(records, faults)
        except DocumentError as fault:  # with the number of its record
            if self.documents_per_record is not None:
                raise fault.at(self.documents_per_record * fault.row) from None
            fault.of_record = True
            raise
        assert batch.records is not None
        if len(batch.records) > len(records):
            kept = {name: values.take(as_arrow(batch.records)) for name, values in kept.items()}
        extra = {name: [values] for name, values in kept.items()} | batch.extra
        if self.documents_per_record is None:
            extra[ANSWER] = [numbers_within(batch.records)]
        rejected = [(at, faults[row]) for at, row in enumerate(batch.records.tolist()) if row in faults]
        lines = self.reader.lines_of(content) if self.skips else None
        return batch._replace(
            done=done, extra=extra, rejected=tuple(rejection(at, fault) for at, fault in rejected), lines=lines
        )

    def _decoded(self, records: BlockRecords, faults: Faults) -> tuple[Batch, dict[str, pa.Array]]:
        """Decode records at once, or one by one if some cannot be used, whose errors are added to `faults`.

        These have those of records that could not be read. A DocumentError is raised if no type holds all values of a
        kept column.
        """
        try:
            if faults:
                raise faults[min(faults)]
            return self.decode(records), self._kept(records)
        except DocumentError:
            if not self.skips:
                raise
        parts = []
        for row in range(len(records)):
            one = records.slice(row, 1) if isinstance(records, pa.RecordBatch) else records[row : row + 1]
            part = self.empty
            try:
                if row not in faults:
                    self._kept(one)
                    part = self.decode(one)
            except DocumentError as fault:
                if fault.reason is None:
                    raise fault.at(row) from None
                faults[row] = fault
            differing = None if part.differing is None else row
            parts.append(part._replace(differing=differing, records=np.full(len(part.input_ids[0]), row)))
        if not isinstance(records, pa.RecordBatch):  # values of rejected records may have any type
            records = [{} if row in faults else record for row, record in enumerate(records)]
        return joined_batches(parts), self._kept(records)

    def _kept(self, records: BlockRecords) -> dict[str, pa.Array]:
        return {column: values_of_column(records, column) for column in self.kept}

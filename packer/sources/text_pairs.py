"""Preference pairs of text: records with two answers, which are tokenized together and decoded to pairs of tokens.

record i of the files ─▶ chosen_input_ids, chosen_labels, rejected_input_ids, rejected_labels ─▶ documents 2i and 2i + 1
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from packer.column_names import ROLES
from packer.engine import Engine, Threads
from packer.progress import Progress, silent
from packer.sources.columns.list_checks import checked, document_lengths
from packer.sources.decoding.spill import decode_inputs, open_pieces, sum_counts
from packer.sources.documents import Batch, Columns, DocumentError, Input, Tokenized, TokenTable, columns_of_side
from packer.sources.pairs import CheckedBatch, Pairs
from packer.sources.rejections import Rejections, joined_sides, rejections_of
from packer.sources.source import Source
from packer.stores import AnyPath
from packer.text import Encoded

COLUMNS_OF_PAIRS = tuple(name for role in ROLES for name in columns_of_side(role)[:2])
"""Columns of tokens and labels of both sides, as tokenized pairs have them."""

_LISTS = pa.list_(pa.int32())
_REJECTED = columns_of_side(ROLES[1])


class TextPairs(Pairs):
    """A source of preference pairs whose files hold text, which is tokenized in every pass over them.

    `spill` decodes the files to what `open_pairs` reads.
    """

    def __init__(self, records: Source, kept: tuple[str, ...]) -> None:
        """Take records, whose lists are the chosen answers, and the columns to keep; see `open_text_pairs`."""
        of_sides = [columns_of_side(role, kept) for role in ROLES]
        name, inputs, of_text = records.name, records.inputs, (records.tokenized, records.pad_id)
        super().__init__(*(Source(name, inputs, columns, None, *of_text, skips=records.skips) for columns in of_sides))
        self._records = records
        self._of_sides = of_sides

    @property
    def records(self) -> Source:
        """The source to decode, whose lists are the records of the files."""
        return self._records

    def tables(self, progress: Progress = silent) -> Iterator[TokenTable]:
        """Yield all documents in order; see `Source.tables`. Each record is tokenized once."""
        self._counts: Counter[str] = Counter()
        yield from super().tables(progress)
        self.tokenized = self._counted(self._counts)

    def spill(
        self,
        folder: AnyPath,
        progress: Progress = silent,
        *,
        engine: Engine = Threads(),  # noqa: B008 (immutable)
        kinds: Mapping[str, pa.DataType] = {},
    ) -> Source:
        """Tokenize all records to streams with the columns of both sides; see `Source.spill`."""
        # A stream without documents has no types of its own.
        lists = dict.fromkeys(_tokens_of(_REJECTED, has_labels=self.has_labels), _LISTS)
        pieces = decode_inputs(self._records, folder, progress, engine, kinds={**kinds, **lists})
        tokenized = self._counted(sum_counts(pieces))
        inputs = [open_pieces(self._records, pieces, columns) for columns in self._of_sides]
        sides = (
            Source(self.name, of_side, columns, None, tokenized, self.pad_id, skips=self.skips)
            for of_side, columns in zip(inputs, self._of_sides, strict=True)
        )
        decoded = Pairs(*sides)
        if self.skips:
            decoded.rejections = _of_both_sides(rejections_of(inputs[0], pieces), inputs[0])
        return decoded

    def _pairs_of(self, number: int) -> Iterator[tuple[CheckedBatch, CheckedBatch]]:
        """Yield the chosen and the rejected answers of the same pairs of an input."""
        try:
            for batch, lengths in checked(self._records.inputs[number], self._records.columns):
                self._counts.update(batch.counts)
                extra = {name: batch.extra[name] for name in self.columns.extra}
                labels = batch.extra[_REJECTED.labels] if self.has_labels else None
                rejected = Batch(batch.extra[_REJECTED.input_ids], labels, batch.done, extra, rejected=batch.rejected)
                other_lengths = document_lengths(rejected.input_ids, labels, {})
                yield (batch._replace(extra=extra), lengths), (rejected, other_lengths)
        except DocumentError as fault:
            raise fault.at(2 * fault.row) from None

    def _counted(self, counts: Counter[str]) -> Tokenized:
        assert self.tokenized is not None
        return replace(self.tokenized, counts=counts)


class _Records(Source):
    """Records with both answers of a pair. Lists are the chosen ones; the rejected ones are in extra columns."""

    documents_per_record = len(ROLES)

    @property
    def stored_columns(self) -> Columns:
        """Names of the columns of decoded streams, which are those of tokenized pairs."""
        return self.columns


def _of_both_sides(records: Rejections, inputs: Sequence[Input]) -> Rejections:
    """Return the rejected lists of pairs, given the rejected records and the decoded inputs of a side."""
    lists = sum(input_.rows or 0 for input_ in inputs)
    of_rejected = (replace(part, first_list=part.first_list + lists) for part in records.parts)
    return replace(joined_sides([records, records], lists), parts=(*records.parts, *of_rejected))


def open_text_pairs(
    name: str,
    inputs: tuple[Input, ...],
    kept: tuple[str, ...],
    *,
    tokenized: Tokenized,
    pad_id: int | None,
    skips: bool,
) -> TextPairs:
    """Make a source of preference pairs of inputs that tokenize them.

    Args:
        name: name of the source.
        inputs: files, whose documents are the chosen answers, with `rejected_columns` as extra columns.
        kept: further columns to keep, with one value per pair.
        tokenized: what shapes the tokens.
        pad_id: padding token of the tokenizer; None if unknown.
        skips: whether records that cannot be used are rejected, with both answers.
    """
    has_labels = any(input_.has_labels for input_ in inputs)
    beside = _tokens_of(_REJECTED, has_labels=has_labels)
    columns = columns_of_side(ROLES[0], (*beside, *kept))
    return TextPairs(_Records(name, inputs, columns, None, tokenized, pad_id, skips=skips), kept)


def rejected_columns(rejected: Encoded) -> dict[str, pa.Array]:
    """Return the extra columns that hold the rejected answers of records."""
    names = _tokens_of(_REJECTED, has_labels=rejected.labels is not None)
    return dict(zip(names, (rejected.input_ids, rejected.labels), strict=False))


def _tokens_of(columns: Columns, *, has_labels: bool) -> tuple[str, ...]:
    return (columns.input_ids, columns.labels) if has_labels else (columns.input_ids,)

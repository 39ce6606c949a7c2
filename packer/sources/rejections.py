"""Rejected documents of a source: numbers and reasons in memory, everything else in files next to the decoded streams.

00003-00000.rejected    a line of JSON for each rejected document of the stream 00003-00000.arrow:
                        [row in the piece, line in the piece or row in the file, reason, message]
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packer.facts import REASONS, RejectedRecord
from packer.shards.files import HashingFile
from packer.sources.decoding.decoded_pieces import Piece
from packer.sources.decoding.decoded_streams import atomic_write
from packer.sources.documents import Batch, Input, Places, RowPlaces
from packer.sources.readers.line_blocks import filled_line_numbers
from packer.stores import AnyPath

if TYPE_CHECKING:
    from packer.plan.mixture_shares import Take
    from packer.sources.source import Source


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectedPart:
    """Rejected documents of a piece of an input that has been decoded."""

    path: AnyPath
    """File with a line for each of them."""

    file: str
    """Name of the file of the source."""

    first_list: int = 0
    """Number of lists of the source before the piece."""

    lines_before: int | None = None
    """Lines of the file before the piece; None if its records are located by row."""

    def records(self) -> Iterator[RejectedRecord]:
        """Yield the record of each rejected document in order; `document` is the number of its list."""
        with self.path.open("rb") as file:
            for content in file:
                row, place, reason, message = json.loads(content)
                line = None if self.lines_before is None else self.lines_before + place
                yield RejectedRecord(
                    document=self.first_list + row,
                    file=self.file,
                    line=line,
                    row=place if line is None else None,
                    reason=reason,
                    message=message,
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejections:
    """Rejected lists of a source, in ascending order."""

    lists: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """(rejected,) number of each list, counted across all inputs."""

    reasons: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    """(rejected,) index of the reason of each in `REASONS`."""

    parts: tuple[RejectedPart, ...] = ()
    """Files that list them; empty unless the source has been decoded."""

    def documents(self, order: NDArray[Any] | None) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Return (documents, reasons): the rejected documents in ascending order, and the reason of each.

        Args:
            order: (documents,) list of each document; None if document i is list i.
        """
        if order is None or not len(self.lists):
            return self.lists, self.reasons
        lists = order.astype(np.int64)
        places = np.minimum(np.searchsorted(self.lists, lists), len(self.lists) - 1)
        found = np.flatnonzero(self.lists[places] == lists)
        return found, self.reasons[places[found]]

    def named(self, order: NDArray[Any] | None) -> Iterator[tuple[int, str]]:
        """Yield (document, reason) of the rejected documents in ascending order; see `documents`."""
        documents, reasons = self.documents(order)
        for document, reason in zip(documents.tolist(), reasons.tolist(), strict=True):
            yield document, REASONS[reason]

    def records(self, order: NDArray[Any] | None) -> Iterator[RejectedRecord]:
        """Yield the records of the rejected documents in ascending order, from the files that list them.

        Args:
            order: as in `documents`; with one, all records are held in memory.
        """
        listed = (one for part in self.parts for one in part.records())
        if order is None:
            yield from listed
            return
        by_list = {record.document: record for record in listed}
        documents, _ = self.documents(order)
        for document, number in zip(documents.tolist(), order[documents].tolist(), strict=True):
            yield replace(by_list[number], document=document)


class RejectionCollector:
    """Collects the numbers and reasons of rejected lists from batches or files."""

    def __init__(self) -> None:
        self._lists, self._reasons = array("q"), array("B")

    def add(self, first_list: int, rejected: Iterable[tuple[int, str]]) -> None:
        """Add (row, reason) of rejected documents, given the number of the list at row 0."""
        for row, reason in rejected:
            self._lists.append(first_list + row)
            self._reasons.append(REASONS.index(reason))

    def add_batch(self, first_list: int, batch: Batch) -> None:
        """Add the rejected documents of a batch, given the number of its first list."""
        self.add(first_list, ((one.row, one.reason) for one in batch.rejected))

    def finish(self, parts: Sequence[RejectedPart] = ()) -> Rejections:
        """Return what was collected."""
        lists, reasons = np.array(self._lists, np.int64), np.array(self._reasons, np.uint8)
        return Rejections(lists=lists, reasons=reasons, parts=tuple(parts))


class RejectedFile:
    """File that lists the rejected documents of a piece, written while its batches pass.

    Args:
        file: file to write; None to list nothing.
        places: locations of the documents of the piece.
    """

    def __init__(self, file: HashingFile | None, places: Places) -> None:
        self._file = file
        self._number: Callable[[int], int] = places.number if isinstance(places, RowPlaces) else int
        self._lines: int | None = None

    @property
    def note(self) -> dict[str, Any] | None:
        """What the note of the piece says about the file; None without a file."""
        return None if self._file is None else {"lines": self._lines, "xxh3_128": self._file.hexdigest()}

    def pass_on(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of a piece, and list the rejected documents of each."""
        row = 0
        for batch in batches:
            if self._file is not None:
                self._list(self._file, batch, row)
            row += sum(map(len, batch.input_ids))
            yield batch

    def _list(self, file: HashingFile, batch: Batch, first_row: int) -> None:
        places = [self._number(first_row + one.row) for one in batch.rejected]
        if batch.lines is not None:
            self._lines = self._lines or 0
            if batch.rejected:
                numbers = filled_line_numbers(batch.lines)
                places = [self._lines + numbers[one.row] for one in batch.rejected]
            self._lines += batch.lines.count(b"\n")
        for one, place in zip(batch.rejected, places, strict=True):
            file.write(json.dumps([first_row + one.row, place, one.reason, one.message]).encode() + b"\n")


@contextmanager
def rejected_file(piece: Piece, *, skips: bool, sync: bool) -> Iterator[RejectedFile]:
    """Yield the file of the rejected documents of a piece, which gets its final name when it is complete.

    Args:
        piece: the piece.
        skips: whether documents are ever rejected; if not, there is no file.
        sync: fsync the file.
    """
    if not skips:
        yield RejectedFile(None, piece.input.places)
        return
    with atomic_write(piece.rejected_path) as temporary, closing(HashingFile(temporary)) as file:
        yield RejectedFile(file, piece.input.places)
        if sync:
            file.sync()


def rejections_of(inputs: Sequence[Input], pieces: Sequence[Piece]) -> Rejections:
    """Return the rejected documents of decoded pieces, given the inputs that these were joined to."""
    first_lists = np.cumsum([0, *(input_.rows or 0 for input_ in inputs)])
    collector, parts = RejectionCollector(), []
    for number, of_input in groupby(pieces, key=lambda piece: piece.number):
        first_list, lines = int(first_lists[number]), 0
        for piece in of_input:
            in_piece = (piece.rejected() or {}).get("lines")
            parts.append(
                RejectedPart(
                    path=piece.rejected_path,
                    file=piece.input.file.name,
                    first_list=first_list,
                    lines_before=None if in_piece is None else lines,
                )
            )
            collector.add(0, ((record.document, record.reason) for record in parts[-1].records()))
            first_list += piece.open().rows
            lines += in_piece or 0
    return collector.finish(parts)


def joined_sides(sides: Sequence[Rejections], lists: int) -> Rejections:
    """Join the rejected lists of the chosen and of the rejected answers of pairs, `lists` of each."""
    one, other = sides
    return Rejections(
        lists=np.concatenate([one.lists, other.lists + lists]), reasons=np.concatenate([one.reasons, other.reasons])
    )


def count_rejected(sources: Sequence[Source], takes: Sequence[Take] | None = None) -> dict[str, int]:
    """Count the rejected documents by reason.

    Args:
        sources: a source that has been read or decoded, or those of a mixture.
        takes: documents that a mixture takes of each source, so that a document counts once per copy.
    """
    counts = np.zeros(len(REASONS), np.int64)
    for number, source in enumerate(sources):
        documents, reasons = source.rejections.documents(source.order)
        times = np.ones(len(documents), np.int64)
        if takes is not None and len(documents):
            take = takes[number]
            times = take.copies + take.sample.ranks(documents)[1].astype(np.int64)
        np.add.at(counts, reasons, times)
    return {reason: int(count) for reason, count in zip(REASONS, counts, strict=True) if count}


def rejected_records(sources: Mapping[str, Source]) -> Iterator[RejectedRecord]:
    """Yield the rejected records of a decoded source, or of those of a mixture by name, in order."""
    for name, source in sources.items():
        for record in source.rejections.records(source.order):
            yield replace(record, source=name) if name else record

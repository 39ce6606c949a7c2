"""Rejected documents of a source: numbers and reasons in memory, everything else in files next to the decoded streams.

00003-00000.rejected    a line of JSON for each rejected document of the stream 00003-00000.arrow:
                        [row in the piece, line in the piece or row in the file, reason, message]
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from packer.facts import REASONS, RejectedRecord
from packer.inputs.documents import Rejection
from packer.stores import AnyPath

Order = NDArray[np.int64] | NDArray[np.uint64]
"""List of each document, shape (documents,)."""


class RejectedNote(TypedDict):
    """What the note of a piece says about its list of rejected documents."""

    lines: int | None
    """Lines of the piece; None if its records are located by row."""

    xxh3_128: str
    """Hash of the list."""


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

    pairs: int | None = None
    """Number of preference pairs in the source, whose lists before the piece are those of one side; None for others."""

    def records(self) -> Iterator[RejectedRecord]:
        """Yield the record of each rejected document in order; `document` is the number of its list."""
        with self.path.open("rb") as file:
            for content in file:
                row, place, reason, message = json.loads(content)
                line = None if self.lines_before is None else self.lines_before + place
                number = row if self.pairs is None else row // 2 + row % 2 * self.pairs
                yield RejectedRecord(
                    document=self.first_list + number,
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

    def documents(self, order: Order | None) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Return (documents, reasons): the rejected documents in ascending order, and the reason of each.

        The order has the list of each document, or is None if document i is list i.
        """
        if order is None or not len(self.lists):
            return self.lists, self.reasons
        lists = order.astype(np.int64)
        places = np.minimum(np.searchsorted(self.lists, lists), len(self.lists) - 1)
        found = np.flatnonzero(self.lists[places] == lists)
        return found, self.reasons[places[found]]

    def named(self, order: Order | None) -> Iterator[tuple[int, str]]:
        """Yield (document, reason) of the rejected documents in ascending order; see `documents`."""
        documents, reasons = self.documents(order)
        for document, reason in zip(documents.tolist(), reasons.tolist(), strict=True):
            yield document, REASONS[reason]

    def records(self, order: Order | None) -> Iterator[RejectedRecord]:
        """Yield the records of the rejected documents in ascending order, from the files that list them.

        With an order, as for `documents`, all records are held in memory.
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

    def add(self, first_list: int, rejected: Iterable[Rejection | RejectedRecord]) -> None:
        """Add rejected documents, given the number of the list at row 0."""
        for one in rejected:
            self._lists.append(first_list + (one.row if isinstance(one, Rejection) else one.document))
            self._reasons.append(REASONS.index(one.reason))

    def finish(self, parts: Sequence[RejectedPart] = ()) -> Rejections:
        """Return what was collected."""
        lists, reasons = np.array(self._lists, np.int64), np.array(self._reasons, np.uint8)
        order = np.argsort(lists)
        return Rejections(lists=lists[order], reasons=reasons[order], parts=tuple(parts))

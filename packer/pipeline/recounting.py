"""The figures of a manifest, counted again from the source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.algorithms.bounds import cut_bound, lower_bound
from packer.arrow import as_arrow
from packer.errors import SourceError
from packer.options import PackOptions
from packer.pipeline.group_plan import group_facts
from packer.pipeline.packed_segments import PackedSegments
from packer.pipeline.planning import account_of
from packer.pipeline.segment_reader import lists_of
from packer.plan import Account, Segments, cut_documents, together_bound
from packer.shards.figures import differences
from packer.shards.kept import KeptValues
from packer.shards.manifest import Manifest
from packer.shards.sharing import group_codes, group_fault, group_values
from packer.sources import TokenTable
from packer.sources.column_values import alike
from packer.sources.documents import DocumentError
from packer.text import LIBRARIES


class _Grouped(NamedTuple):
    """Segments of the rows, whose rows are looked at when their groups are known; shape (segments,)."""

    documents: NDArray[np.int64]
    lengths: NDArray[np.int32]
    places: NDArray[np.int64]
    """Row * max_len + offset in the row."""


class SourceCounts:
    """What the tables of a source come to, one after the other.

    Args:
        options: those of the pack.
        keeps_whole: its algorithm cuts documents only where max_len demands it.
    """

    def __init__(self, options: PackOptions, *, keeps_whole: bool) -> None:
        self._options = options
        self._keeps_whole = keeps_whole
        self._account: Account | None = None
        self._policy = np.zeros(options.max_len + 1, np.int64)
        self._groups: list[pa.DictionaryArray] = []  # the values of each table's documents
        self._grouped: list[_Grouped] = []  # the segments of each table

    def add(
        self, table: TokenTable, policy: Segments, segments: Segments, packed: PackedSegments, numbers: slice
    ) -> None:
        """Count a table.

        Args:
            table: the documents.
            policy: what the long-document policy makes of them, untrained segments removed.
            segments: the same as it is in the rows; a wrapped document is cut elsewhere there.
            packed: segments of the rows.
            numbers: which of them are those of the table.
        """
        account = account_of(segments, self._options)
        self._account = account if self._account is None else self._account + account
        self._policy += policy.histogram
        name = self._options.group_by
        if name is not None:
            lists = lists_of(table, np.arange(len(table.lengths)))
            values = KeptValues.of({name: table.extra[name]}, lists).column(name, lists, np.zeros(len(lists), bool))
            self._groups.append(group_values(values, name))
            self._grouped.append(  # copies, as views would hold the whole bucket
                _Grouped(
                    documents=packed.documents[numbers].copy(),
                    lengths=packed.lengths[numbers].copy(),
                    places=packed.places[numbers].copy(),
                )
            )

    def faults(self, manifest: Manifest, describe: Callable[[int], str]) -> Iterator[str]:
        """Yield each total that the source does not come to, and a row that has not the groups it should.

        Args:
            manifest: of the dataset.
            describe: names a document for a message.
        """
        totals = manifest.totals
        counted = asdict(self._account) if self._account is not None else {"documents": 0, "tokens": 0}
        others = [
            f"the source has {counted[what]:,} {what}, the manifest says {totals[what]:,}"
            for what in ("documents", "tokens")
            if counted[what] != totals[what]
        ]
        yield from others or differences(totals, counted, "the source")
        if self._groups:
            yield from self._group_faults(manifest, describe)
        elif not self._keeps_whole:
            bound = cut_bound(self._policy, self._options.max_items)
            yield from differences(totals, {"lower_bound": bound}, "the source")

    def _group_faults(self, manifest: Manifest, describe: Callable[[int], str]) -> Iterator[str]:
        options, totals = self._options, manifest.totals
        groups = _joined(self._groups)
        documents, lengths, places = map(np.concatenate, zip(*self._grouped, strict=True))
        of_segments, rows = groups.take(as_arrow(documents)), places // manifest.max_len
        fault = group_fault(rows, of_segments, manifest.options, lambda at: describe(int(documents[at])))
        if fault is not None:
            yield f"row {fault[0]} {fault[1]}"
        step = 2 if options.pairs else 1
        extents = -(-lengths // options.align) * options.align
        items = cut_documents(extents.reshape(-1, step).sum(axis=1, dtype=np.int32), options.max_len, "error")
        counted = group_facts(group_codes(groups), None)
        least = lower_bound(items.histogram, options.max_items)
        told = totals.get("groups")
        ungrouped = told.get("packs_ungrouped") if isinstance(told, Mapping) else None
        is_possible = type(ungrouped) is int and least <= ungrouped <= len(documents) // step
        counted["packs_ungrouped"] = ungrouped if is_possible else least  # the algorithm decides how many
        yield from differences(totals, {"groups": counted}, "the source")
        if options.group_mode == "together":
            bound = together_bound(items, group_codes(of_segments)[::step], options.max_items)
            yield from differences(totals, {"lower_bound": bound}, "the source")


def identity_faults(told: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Yield in what a source is not the one that the manifest tells of, a sentence each.

    Versions of libraries that made tokens of text do not count: the tokens are compared. Nor do the names and sizes of
    files: the same documents in other files, or compressed, are the same source. Files of the same names must have the
    same documents and tokens.

    Args:
        told: `source` of the manifest.
        found: the same of the source that is there.
    """
    for name in dict.fromkeys([*told, *found]):
        one, other = told.get(name), found.get(name)
        if name == "text" and isinstance(one, Mapping) and isinstance(other, Mapping):
            one, other = ({key: text[key] for key in text if key not in LIBRARIES} for text in (one, other))
        if name == "files" and isinstance(one, list) and isinstance(other, list):
            if [_name_of(file) for file in one] != [_name_of(file) for file in other]:
                continue
            one, other = ([_without_size(file) for file in files] for files in (one, other))
        if (
            name in ("files", "mixture")
            and isinstance(one, list)
            and isinstance(other, list)
            and len(one) == len(other)
        ):
            for number, parts in enumerate(zip(one, other, strict=True)):
                for fault in identity_faults(*parts):
                    yield f"{fault} ({name}, number {number})"
        elif one != other or isinstance(one, bool) != isinstance(other, bool):
            yield f"the source is not as it was packed: {name} is {other}, the manifest says {one}"


def _name_of(file: Any) -> Any:
    return file.get("name") if isinstance(file, Mapping) else file


def _without_size(file: Any) -> Any:
    return {key: value for key, value in file.items() if key != "bytes"} if isinstance(file, Mapping) else file


def _joined(groups: list[pa.DictionaryArray]) -> pa.DictionaryArray:
    """Join the groups of the parts of a source, whose values may be of different types.

    Raises:
        SourceError: no type holds all of them.
    """
    try:
        values = alike([part.dictionary for part in groups], "group_by")
    except DocumentError as fault:
        raise SourceError(fault.message) from None
    return pa.concat_arrays(
        [pa.DictionaryArray.from_arrays(part.indices, each) for part, each in zip(groups, values, strict=True)]
    )

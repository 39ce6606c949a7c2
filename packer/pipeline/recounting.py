"""Count the totals of a manifest again from the source, and compare the identity of the source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from packer.algorithms.bounds import cut_bound, lower_bound
from packer.arrow import as_arrow
from packer.errors import SourceError
from packer.facts import Account, MixturePart, SourceIdentity
from packer.options import PackOptions
from packer.pipeline.planning.group_plan import group_totals
from packer.pipeline.segments.packable_segments import account_of
from packer.plan.cutting import cut_documents
from packer.plan.groups import together_bound
from packer.plan.segments import Segments, extents_of
from packer.shards.check_totals import differences
from packer.shards.kept_columns import KeptValues
from packer.shards.manifest import Manifest
from packer.shards.sharing import group_codes, group_fault, group_values
from packer.sources.columns.column_types import cast_to_common_type
from packer.sources.documents import DocumentError, TokenTable
from packer.sources.packed.segment_index import SortedSegments


class SourceCounts:
    """Totals of a source, added up table by table.

    Args:
        options: options of the pack.
        keeps_whole: whether the algorithm cuts only documents longer than max_len.
    """

    def __init__(self, options: PackOptions, *, keeps_whole: bool) -> None:
        self._options = options
        self._keeps_whole = keeps_whole
        self._account: Account | None = None
        self._policy = np.zeros(options.max_len + 1, np.int64)
        self._groups: list[pa.DictionaryArray] = []  # values of the documents of each table
        self._grouped: list[SortedSegments] = []  # segments in the rows of the documents of each table

    def add(self, table: TokenTable, policy: Segments, segments: Segments, found: SortedSegments) -> None:
        """Count a table.

        Args:
            table: documents of the source.
            policy: segments that the long-document policy makes of them, untrained ones left out.
            segments: the same documents as cut in the rows; wrapping cuts them elsewhere.
            found: segments that the rows have of them.
        """
        account = account_of(segments, self._options)
        self._account = account if self._account is None else self._account + account
        self._policy += policy.histogram
        name = self._options.group_by
        if name is not None:
            lists = table.lists_of(np.arange(len(table.lengths)))
            values = KeptValues.of({name: table.extra[name]}, lists).column(name, lists, np.zeros(len(lists), bool))
            self._groups.append(group_values(values, name))
            self._grouped.append(found)

    def faults(self, manifest: Manifest, rejected: Mapping[str, int], describe: Callable[[int], str]) -> Iterator[str]:
        """Yield a sentence for each total that the source contradicts, and for the first row with wrong groups.

        Args:
            manifest: manifest of the dataset.
            rejected: numbers of rejected documents by reason, which are among the empty ones here.
            describe: function that names a document in messages.
        """
        totals = manifest.totals
        counted: dict[str, Any] = {"documents": 0, "tokens": 0}
        if self._account is not None:
            counted = self._account.to_dict()
            if self._options.on_error == "skip":
                counted = self._account.with_rejected(sum(rejected.values())).to_dict()
                counted["documents_rejected"] = dict(rejected)
        others = [
            f"the source has {counted[what]:,} {what}, the manifest says {recorded:,}"
            for what, recorded in (("documents", totals.documents), ("tokens", totals.tokens))
            if counted[what] != recorded
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
        documents, _, lengths, places, _ = map(np.concatenate, zip(*self._grouped, strict=True))
        of_segments, rows = groups.take(as_arrow(documents)), places // manifest.max_len
        fault = group_fault(rows, of_segments, manifest.options, lambda at: describe(int(documents[at])))
        if fault is not None:
            yield f"row {fault[0]} {fault[1]}"
        step = 2 if options.pairs else 1
        extents = extents_of(lengths, options.align)
        items = cut_documents(extents.reshape(-1, step).sum(axis=1, dtype=np.int32), options.max_len, "error")
        least = lower_bound(items.histogram, options.max_items)
        ungrouped = totals.groups.rows_ungrouped if totals.groups is not None else 0
        is_possible = least <= ungrouped <= len(documents) // step  # the exact number depends on the algorithm
        counted = group_totals(group_codes(groups), ungrouped if is_possible else least)
        yield from differences(totals, {"groups": counted.to_dict()}, "the source")
        if options.group_mode == "together":
            bound = together_bound(items, group_codes(of_segments)[::step], options.max_items)
            yield from differences(totals, {"lower_bound": bound}, "the source")


def identity_faults(recorded: SourceIdentity, found: SourceIdentity) -> Iterator[str]:
    """Yield a sentence for each difference between a source and the identity in the manifest.

    Versions of the libraries that tokenize text may differ, since tokens are compared, and so may the names and sizes
    of files: the same documents in other files, or compressed, are the same source. Only if all names are equal must
    each file have the same documents and tokens.

    Args:
        recorded: identity in the manifest.
        found: identity of the source.
    """
    one, other = _compared(recorded), _compared(found)
    if [file["name"] for file in one["files"]] != [file["name"] for file in other["files"]]:
        del one["files"], other["files"]
    yield from _faults(one, other)


def _compared(identity: SourceIdentity | MixturePart) -> dict[str, Any]:
    """Return the facts that must be equal."""
    content = identity.to_dict()
    if identity.text is not None:
        content["text"] = identity.text.without_versions()
    if isinstance(identity, SourceIdentity):
        content["files"] = [{name: file[name] for name in file if name != "bytes"} for file in content["files"]]
        content["mixture"] = [_compared(part) for part in identity.mixture]
    return content


def _faults(recorded: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*recorded, *found]):
        one, other = recorded.get(name), found.get(name)
        if name in ("files", "mixture") and isinstance(one, list) and len(one) == len(other or ()):
            for number, parts in enumerate(zip(one, other or (), strict=True)):
                for fault in _faults(*parts):
                    yield f"{fault} ({name}, number {number})"
        elif one != other:
            yield f"the source differs from the packed one: {name} is {other}, the manifest says {one}"


def _joined(groups: list[pa.DictionaryArray]) -> pa.DictionaryArray:
    """Join the groups of the parts of a source, whose values may have different types.

    Raises:
        SourceError: no type holds all values.
    """
    try:
        values = cast_to_common_type([part.dictionary for part in groups], "group_by")
    except DocumentError as fault:
        raise SourceError(fault.message) from None
    return pa.concat_arrays(
        [pa.DictionaryArray.from_arrays(part.indices, each) for part, each in zip(groups, values, strict=True)]
    )

"""Check the counts in a manifest against each other, against the small files, and against the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from packer.algorithms import Algorithm, get_algorithm
from packer.algorithms.bounds import lower_bound, token_bound
from packer.errors import PackerError
from packer.facts import MixturePart, Totals
from packer.options import PackOptions
from packer.shards.files import hash_file
from packer.shards.generations import in_generation, parts_of
from packer.shards.manifest import Manifest
from packer.shards.reader import read_rejected
from packer.stores import AnyPath

_LONGEST = 2**31 - 1  # tokens of a document


@dataclass(kw_only=True, slots=True)
class SegmentCounts:
    """Counts of segments in rows."""

    items: NDArray[np.int64]
    """Shape (max_len + 1,): segments of each extent; the two segments of a preference pair count as one."""

    first: int = 0
    """Segments that begin with the first token of their document."""

    @classmethod
    def none(cls, max_len: int) -> SegmentCounts:
        """Return the counts of no segments."""
        return cls(items=np.zeros(max_len + 1, np.int64))

    def add(self, other: SegmentCounts) -> None:
        """Add the counts of other rows."""
        self.items += other.items
        self.first += other.first


def differences(totals: Totals, counted: Mapping[str, object], origin: str) -> Iterator[str]:
    """Yield a sentence for each total of a manifest that differs from a new count; other totals are not compared.

    `counted` has correct totals by name, as in the file, and `origin` is what was counted, as in "the rows".
    """
    return _compare(totals.to_dict(), counted, origin, "")


def _compare(totals: Mapping[str, object], counted: Mapping[str, object], origin: str, parent: str) -> Iterator[str]:
    for key, value in counted.items():
        name, recorded = f"{parent}{key}", totals.get(key)
        if isinstance(value, Mapping) and isinstance(recorded, Mapping):
            yield from _compare(recorded, value, origin, f"{name}.")
        elif recorded != value:
            yield f"{name} is {_formatted(recorded)} in the manifest, {_formatted(value)} computed from {origin}"


def _formatted(value: object) -> str:
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)[:60]


def manifest_faults(folder: AnyPath, manifest: Manifest) -> Iterator[str]:
    """Yield a sentence for each contradiction within a manifest, or with the files for `datasets`."""
    for part in parts_of(manifest):
        for fault in _part_faults(part):
            yield in_generation(part, fault)
    for name, content in manifest.small_files().items():
        path = folder / name
        if name not in manifest.files:
            yield f"{name} is not listed in the manifest"
        elif path.is_file() and path.read_bytes() != content and hash_file(path) == manifest.files[name]:
            yield f"{name} does not list the shards of the manifest"  # with another hash, it was changed after packing


def _part_faults(manifest: Manifest) -> Iterator[str]:
    """Yield a sentence for each contradiction within the description of a generation."""
    totals, shards = manifest.totals, manifest.shards
    sums = {name: int(shards.column(name).sum()) for name in ("rows", "tokens", "trained", "untrained_segments")}
    rows, tokens = sums["rows"], sums["tokens"]
    counted: dict[str, object] = {
        "rows": rows,
        "tokens_packed": tokens,
        "tokens_trained": sums["trained"],
        "segments_untrained": sums["untrained_segments"],
    }
    if rows:
        counted["efficiency"] = tokens / (rows * manifest.max_len)
    yield from differences(totals, counted, "the shards")
    yield from _outside("pool_rows", totals.pool_rows, 0, rows, origin="the shards")
    yield from _source_faults(manifest)
    accounted = totals.tokens_packed - totals.tokens_repeated + totals.tokens_lost
    yield from differences(totals, {"tokens": accounted}, "those packed, truncated and dropped")
    if totals.documents_rejected is not None:
        rejected = {"rejected": sum(totals.documents_rejected.values())}
        yield from differences(totals, {"documents_dropped": rejected}, "documents_rejected")
    truncated, dropped = totals.documents_truncated, totals.documents_dropped
    yield from _outside("tokens_truncated", totals.tokens_truncated, truncated, truncated * _LONGEST)
    for reason, lost in totals.tokens_dropped.items():
        of_packed = reason == "untrained"  # tokens of packed documents, too
        most = totals.documents if of_packed else dropped.get(reason, 0)
        yield from _outside(f"tokens_dropped.{reason}", lost, 0, most * _LONGEST)
    for name in ("truncated", "straddling", "untrained", "by_gigatoken"):
        name = f"documents_{name}"
        yield from _outside(name, getattr(totals, name) or 0, 0, totals.documents)
    if totals.groups is not None:
        with_group = totals.documents - totals.groups.documents_without
        yield from _outside("groups.documents_without", totals.groups.documents_without, 0, totals.documents)
        yield from _outside("groups.groups", totals.groups.groups, 0, max(with_group, 0))


def _source_faults(manifest: Manifest) -> Iterator[str]:
    """Yield a sentence for each contradiction between a source, its files, the sources of a mixture, and the totals."""
    source, totals = manifest.source, manifest.totals
    yield from differences(totals, {"documents": source.documents, "tokens": source.tokens}, "the source")
    files = iter(source.files)
    for part in source.mixture or (source,):
        own = list(islice(files, part.files) if isinstance(part, MixturePart) else files)
        of = f"the source {part.name}" if isinstance(part, MixturePart) else "the source"
        in_files = {"documents": sum(file.rows for file in own), "tokens": sum(file.tokens for file in own)}
        for name, found in in_files.items():
            yield from _outside(f"{name} of {of}", getattr(part, name), found, found, origin="its files")
        if isinstance(part, MixturePart):
            yield from _outside(f"tokens_kept of {of}", part.tokens_kept, 0, part.tokens, origin="its tokens")
            for name in ("documents", "tokens", "tokens_kept"):
                whole, taken = getattr(part, name), getattr(part.taken, name)
                least = whole * part.taken.copies
                yield from _outside(f"taken.{name} of {of}", taken, least, least + whole, origin="its copies")
    if source.mixture:
        every = [part.taken for part in source.mixture]
        files_of_all, count = sum(part.files for part in source.mixture), len(source.files)
        yield from _outside("files of all sources", files_of_all, count, count, origin="their list")
        kept = totals.tokens_packed - totals.tokens_repeated  # without the tokens that --untrained drop left out
        for name, least, most in (
            ("documents", source.documents, source.documents),
            ("tokens", source.tokens, source.tokens),
            ("tokens_kept", kept, source.tokens),
        ):
            yield from _outside(f"taken.{name} of all sources", sum(getattr(each, name) for each in every), least, most)


def _outside(name: str, recorded: int, least: int, most: int, *, origin: str = "the totals") -> Iterator[str]:
    """Yield a sentence if a number of the manifest is outside of its limits."""
    if not least <= recorded <= most:
        limits = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        yield f"{name} is {recorded:,} in the manifest, {limits} computed from {origin}"


def totals_faults(manifest: Manifest, counted: SegmentCounts) -> Iterator[str]:
    """Yield a sentence for each total, of a dataset or of one of its generations, that its rows contradict."""
    totals, options, items = manifest.totals, manifest.options, counted.items
    count = int(items.sum())
    segments = count * options.documents_each
    yield from differences(totals, {"segments": segments}, "the rows")

    # Each packed document has one segment that begins with its first token, unless that token was left out.
    drops = options.untrained == "drop"
    most = segments if drops or options.truncate_side == "left" else counted.first
    packed = totals.documents_packed
    yield from _outside("documents without those dropped", packed, counted.first, most, origin="the rows")
    if (pieces := segments - packed) >= 0:
        least, most = (0, totals.documents) if drops else (min(pieces, 1), min(pieces, packed))
        yield from _outside("documents_split", totals.documents_split, least, most, origin="the rows")
        most = options.overlap * pieces
        yield from _outside("tokens_repeated", totals.tokens_repeated, 0 if drops else most, most, origin="the rows")

    try:
        least, is_exact = _bound_of_rows(options, items)
    except PackerError as error:
        yield str(error)
        return
    most = least if is_exact else max(least, manifest.rows)
    yield from _outside("lower_bound", totals.lower_bound, least, most, origin="the rows")
    if totals.groups is not None:
        least = lower_bound(items, options.max_items)
        yield from _outside("groups.rows_ungrouped", totals.groups.rows_ungrouped, least, count, origin="the rows")


def _bound_of_rows(options: PackOptions, items: NDArray[np.int64]) -> tuple[int, bool]:
    """Return the fewest rows that segments need, and whether the manifest must record exactly this lower bound.

    It may record a higher one where an algorithm proves it or groups need more rows.
    """
    algorithm = get_algorithm(options.algorithm)
    is_grouped = options.group_by is not None
    if not options.keeps_whole:
        return token_bound(items), False
    if is_grouped and options.group_mode != "apart":
        return token_bound(items), False
    proves = isinstance(algorithm, Algorithm) and algorithm.proves
    return lower_bound(items, options.max_items), not is_grouped and not proves


def rejected_faults(folder: AnyPath, manifest: Manifest) -> Iterator[str]:
    """Yield a sentence for each reason that the list and the totals of the manifest count differently.

    A mixture counts a document once per copy, and may not take it at all, so its counts are not compared.
    """
    recorded = manifest.totals.documents_rejected
    if recorded is None or manifest.options.weights:
        return
    try:
        counted = Counter(record.reason for record in read_rejected(folder / manifest.rejected_name))
    except PackerError as error:
        yield str(error)
        return
    for reason in dict.fromkeys([*recorded, *counted]):
        one, other = recorded.get(reason, 0), counted[reason]
        if one != other:
            origin = manifest.rejected_name
            yield f"documents_rejected.{reason} is {one:,} in the manifest, {other:,} computed from {origin}"

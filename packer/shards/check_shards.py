"""Checks of a packed dataset without its source: every byte against the manifest, every row against the format."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.algorithms import get_algorithm
from packer.algorithms.bounds import lower_bound
from packer.algorithms.index_arrays import joined_ranges, restart_positions
from packer.arrow import as_arrow, as_numpy, is_numeric
from packer.column_names import LOSS_WEIGHTS, NO_LOSS
from packer.engines.engine import Engine
from packer.errors import PackerError
from packer.json_records import REJECTED, ShardEntry, Totals
from packer.progress import Progress, TaskSums
from packer.shards.files import LISTED, MANIFEST, all_shard_names, hash_file, refuse_foreign_work
from packer.shards.located_rows import LocatedRows, is_segment
from packer.shards.manifest import Manifest, is_sealed
from packer.shards.reader import check_size, open_shard, read_manifest, read_rejected
from packer.shards.row_checks import documents_fault, rows_fault, sharing_fault
from packer.shards.writer import Counts
from packer.signals import CURRENT_TASK
from packer.stores import AnyPath
from packer.stores.local_files import local_copy
from packer.token_memory.token_column import count_trained

Place = tuple[int, int]
"""Document of a segment, and its first token in the document."""


@dataclass(slots=True)
class SegmentCounts:
    """Counts of segments in rows."""

    histogram: NDArray[np.int64]
    """Shape (max_len + 1,): number of segments of each extent."""

    ends: tuple[Place, Place] | None = None
    """Places of the first and the last segment if all segments are in the order of the source; otherwise None."""


def verify_packed(folder: AnyPath, progress: Progress, engine: Engine = Engine()) -> Iterator[str]:  # noqa: B008
    """Yield a sentence for each fault of a packed dataset; report progress in bytes of the shards.

    Shards in object storage are copied to temporary files for the check. Raises a PackerError if the manifest is
    missing or cannot be read, and an OSError if the store cannot be read.
    """
    manifest = read_manifest(folder)
    text = (folder / MANIFEST).read_bytes()
    if not is_sealed(text, json.loads(text)):
        yield f"{MANIFEST} does not match its own checksum: it was changed after packing"
        return  # no other fact is reliable then
    try:
        refuse_foreign_work(folder)
    except PackerError as error:
        yield str(error)
    for name, expected in manifest.files.items():
        if not (folder / name).is_file():
            yield f"{name} is missing"
        elif hash_file(folder / name) != expected:
            yield f"{name} was changed after packing"
    if REJECTED in manifest.files and (folder / REJECTED).is_file():
        yield from rejected_faults(folder, manifest)
    named = {*all_shard_names(len(manifest.shards)), *manifest.files}
    unlisted = sorted({path.name for path in folder.iterdir() if LISTED.fullmatch(path.name)} - named)
    yield from (f"{name} is not listed in the manifest" for name in unlisted)
    yield from manifest_faults(folder, manifest)
    counted, found, in_order = SegmentCounts(np.zeros(manifest.max_len + 1, np.int64)), {}, {}
    total = int(manifest.shards.column("bytes").sum())
    report = TaskSums(lambda done: progress("verify", done, total))
    task, shards = partial(_checked_shard, folder, manifest), range(len(manifest.shards))
    for shard, faults, segments in engine.run(task, shards, report):
        counted.histogram += segments.histogram
        found[shard] = faults
        if segments.ends is not None:
            in_order[shard] = segments.ends
        report(shard, int(manifest.shards.column("bytes")[shard]))
    wrong = [fault for _, faults in sorted(found.items()) for fault in faults]
    for shard, (first, _) in sorted(in_order.items()):
        before = in_order.get(shard - 1)
        if before is not None and before[1] >= first:
            wrong.append(f"{manifest.shards[shard].file} {_out_of_order(before[1], first, manifest)}")
    yield from wrong or totals_faults(manifest, counted)


def _checked_shard(folder: AnyPath, manifest: Manifest, shard: int) -> tuple[int, tuple[str, ...], SegmentCounts]:
    """Check a shard. Returns its number, a sentence for each fault, and the counts of its segments.

    Raises an OSError if the store cannot be read.
    """
    entry, faults = manifest.shards[shard], list[str]()
    counts = SegmentCounts(np.zeros(manifest.max_len + 1, np.int64))
    try:
        with local_copy(check_size(folder, entry)) as copy:
            if hash_file(copy) != entry.xxh3_128:
                raise PackerError(f"{entry.file} does not match its hash: it was changed after packing")
            table = open_shard(folder, entry, manifest, copy)
            faults += _rows_faults(table, entry, manifest, out=counts)
    except PackerError as error:
        faults.append(str(error))
    return shard, tuple(faults), counts


def _rows_faults(table: pa.Table, entry: ShardEntry, manifest: Manifest, *, out: SegmentCounts) -> Iterator[str]:
    """Yield a sentence for each fault of the rows of a shard, and add its segments to `out`."""
    found, row, is_counted = Counts(), 0, True
    for batch in table.to_batches():
        CURRENT_TASK.report(entry.bytes * row // len(table))
        fault = rows_fault(batch, manifest)
        segments = LocatedRows.of_batch(batch) if fault is None else None
        if segments is not None:
            fault = (
                _tokens_fault(batch, segments, manifest)
                or _kept_fault(batch, manifest)
                or documents_fault(segments, manifest)
            )
        if segments is None or fault is not None:
            is_counted = False
            yield f"{entry.file} rows {row} to {row + batch.num_rows - 1}: {fault}"
        else:
            found = found.with_counts(_counts(batch, segments, manifest))
            found_in = sharing_fault(batch, segments, manifest.options)
            if found_in is None and manifest.options.keeps_order:
                found_in = _order_fault(segments, manifest, out)
            if found_in is not None:
                yield f"{entry.file} row {row + found_in[0]} {found_in[1]}"
            else:
                np.add.at(out.histogram, segments.extents(manifest.options.align), 1)
        row += batch.num_rows
    if not is_counted:
        return
    # In an index, trained tokens are known only with the source.
    names = ("tokens", "largest_id") if manifest.options.index_only and manifest.source.labels else (*_COUNTED,)
    yield from count_faults(entry, found, names)


_COUNTED = {
    "tokens": "real tokens",
    "largest_id": "as its largest id",
    "trained": "trained tokens",
    "untrained_segments": "segments without a trained token",
    "trained_later": "trained tokens in later segments",
}
"""Descriptions of the counts in `Counts`."""


def count_faults(entry: ShardEntry, found: Counts, names: Iterable[str] = _COUNTED) -> Iterator[str]:
    """Yield a sentence for each of these counts that differs from the count in the entry of a shard."""
    for name in names:
        count, expected = getattr(found, name), getattr(entry, name)
        if count != expected:
            yield f"{entry.file} has {count:,} {_COUNTED[name]}, the manifest says {expected:,}"


def _counts(batch: pa.RecordBatch, segments: LocatedRows, manifest: Manifest) -> Counts:
    """Count the tokens and labels of a record batch that has no faults."""
    trained: NDArray[np.integer[Any]] | None = None
    options = manifest.options
    if options.index_only and options.labels:
        trained = segments.lengths - 1
    elif "labels" in batch.schema.names:
        places = segments.places(options.align, options.max_len)
        trained = count_trained(places, as_numpy(batch["labels"].flatten()))
    names = (manifest.row_format.input_ids, "labels")
    return Counts.of(segments, trained, [as_numpy(batch[name].values) for name in batch.schema.names if name in names])


def _tokens_fault(batch: pa.RecordBatch, segments: LocatedRows, manifest: Manifest) -> str | None:
    """Return the first fault in the values per token of a record batch with a valid structure, or None."""
    wanted = manifest.row_format.stored_token_columns
    if not wanted:
        return None
    flat = {name: as_numpy(batch[name].flatten()) for name in wanted}
    tokens = flat[manifest.row_format.input_ids]
    places = segments.places(manifest.options.align, manifest.max_len)
    padding = np.ones(len(tokens), bool)
    padding[joined_ranges(places, segments.lengths)] = False
    if tokens.min() < 0:
        return "a token is negative"
    if (tokens[padding] != manifest.row_format.pad_id).any():
        return f"padding is not pad_id {manifest.row_format.pad_id}"
    if "labels" in flat:
        untrained = padding.copy()
        untrained[places] = True
        if (flat["labels"][untrained] != NO_LOSS).any():
            return f"a label of padding, or of a segment's first token, is not {NO_LOSS}"
    if "position_ids" in flat:
        extents = as_numpy(batch["seq_lengths"].values)  # including padding tails
        if not np.array_equal(flat["position_ids"], restart_positions(extents)):
            return "position_ids do not restart at 0 with every segment"
    for name in manifest.options.stored_keep_tokens:
        if (as_numpy(batch[name].flatten())[padding] != 0).any():
            return f"{name} is not 0 at padding"
    return None


def _kept_fault(batch: pa.RecordBatch, manifest: Manifest) -> str | None:
    """Describe the first wrong value of padding in a kept column, or the first wrong weight. Returns None if valid."""
    padding = ~is_segment(batch)
    for name in manifest.options.kept if padding.any() else ():
        found = batch[name].values.filter(as_arrow(padding))
        is_number = is_numeric(found.type) or pa.types.is_boolean(found.type)
        if found.null_count < len(found) if not is_number else found.null_count or as_numpy(found).any():
            return f"{name} is not {'0' if is_number else 'null'} at padding"
    if LOSS_WEIGHTS in batch.schema.names:
        values = as_numpy(batch[LOSS_WEIGHTS].flatten())
        if not ((values >= 0) & np.isfinite(values)).all():
            return f"{LOSS_WEIGHTS} holds a value that is not a finite number from 0 on"
    return None


def _order_fault(segments: LocatedRows, manifest: Manifest, out: SegmentCounts) -> tuple[int, str] | None:
    """Find a row with a segment that precedes an earlier segment in the source; update the places in `out.ends`."""
    documents, starts = segments.documents, segments.starts
    last = (int(documents[-1]), int(starts[-1]))
    first = (int(documents[0]), int(starts[0]))
    if out.ends is not None and out.ends[1] >= first:
        return 0, _out_of_order(out.ends[1], first, manifest)
    turns_back = (documents[1:] < documents[:-1]) | ((documents[1:] == documents[:-1]) & (starts[1:] <= starts[:-1]))
    if turns_back.any():
        at = int(turns_back.argmax())
        one, other = ((int(documents[each]), int(starts[each])) for each in (at, at + 1))
        return int(segments.row_numbers[at + 1]), _out_of_order(one, other, manifest)
    out.ends = (first if out.ends is None else out.ends[0], last)
    return None


def _out_of_order(one: Place, other: Place, manifest: Manifest) -> str:
    """Describe a segment that comes before another in the source, but after it in the rows."""
    named = [f"document {document:,} from token {start:,}" for document, start in (other, one)]
    return f"holds {named[0]} after {named[1]}, and {manifest.options.algorithm} keeps the order of the source"


# ---- the counts in the manifest ----


def differences(totals: Totals, counted: Mapping[str, object], origin: str) -> Iterator[str]:
    """Yield a sentence for each total of a manifest that differs from a new count.

    counted: new counts by the name of the total; other totals are not compared. origin: what was counted, such as "the
    rows".
    """
    recorded = totals.to_dict()
    for name, value in counted.items():
        found = recorded.get(name)
        pairs = [(name, found, value)]
        if isinstance(value, Mapping) and isinstance(found, Mapping):
            pairs = [(f"{name}.{key}", found.get(key), each) for key, each in value.items()]
        for key, *both in pairs:
            if both[0] != both[1]:
                one, other = (f"{each:,}" if isinstance(each, (int, float)) else str(each)[:60] for each in both)
                yield f"{key} is {one} in the manifest, {other} computed from {origin}"


def manifest_faults(folder: AnyPath, manifest: Manifest) -> Iterator[str]:
    """Yield a sentence for each total that contradicts the entries of the shards, and for each wrong small file.

    The checksum of the manifest covers all other contradictions.
    """
    rows, tokens = (int(manifest.shards.column(name).sum()) for name in ("rows", "tokens"))
    counted = {"rows": rows, "efficiency": tokens / (rows * manifest.max_len), **manifest.shards.totals()}
    yield from differences(manifest.totals, counted, "the shards")
    for name, content in manifest.small_files().items():
        path = folder / name
        if name not in manifest.files:
            yield f"{name} is not listed in the manifest"
        elif path.is_file() and path.read_bytes() != content and hash_file(path) == manifest.files[name]:
            yield f"{name} does not list the shards of the manifest"  # with another hash, it was changed after packing


def totals_faults(manifest: Manifest, counted: SegmentCounts) -> Iterator[str]:
    """Yield a sentence for each total that contradicts the rows. Totals that only planning counts are left out."""
    options, histogram = manifest.options, counted.histogram
    found = {"segments": int(histogram.sum())}
    if options.keeps_whole and options.group_by is None and not get_algorithm(options.algorithm).proves:
        found["lower_bound"] = lower_bound(histogram, options.max_segments)
    yield from differences(manifest.totals, found, "the rows")


def rejected_faults(folder: AnyPath, manifest: Manifest) -> Iterator[str]:
    """Yield a sentence for each reason that the list of rejected records and the manifest count differently."""
    recorded = manifest.totals.documents_rejected
    if recorded is None:
        return
    try:
        counted = Counter(record.reason for record in read_rejected(folder / REJECTED))
    except PackerError as error:
        yield str(error)
        return
    for reason in dict.fromkeys([*recorded, *counted]):
        one, other = recorded.get(reason, 0), counted[reason]
        if one != other:
            yield f"documents_rejected.{reason} is {one:,} in the manifest, {other:,} computed from {REJECTED}"

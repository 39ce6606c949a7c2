"""Check a packed dataset without its source: every byte against the manifest, every row against the format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packer.arrow import as_numpy
from packer.column_names import TOKEN_COLUMNS
from packer.errors import PackerError
from packer.facts import REJECTED
from packer.gather import count_trained
from packer.labels import NO_LOSS
from packer.progress import Progress
from packer.shards.figures import manifest_faults, totals_faults
from packer.shards.files import hash_file
from packer.shards.manifest import MANIFEST, SHARDS, Manifest, ShardEntry, checksum, is_canonical
from packer.shards.reader import open_shard, read_manifest
from packer.shards.rejected_records import rejected_faults
from packer.shards.row_format import PADDING
from packer.shards.sharing import sharing_fault
from packer.shards.structure import rows_fault
from packer.shards.writer import Counts


def verify_packed(folder: Path, progress: Progress) -> Iterator[str]:
    """Yield a sentence for each fault of a packed dataset; report progress in bytes of the shards.

    Raises:
        PackerError: the manifest is missing or cannot be read.
    """
    manifest = read_manifest(folder)
    text = (folder / MANIFEST).read_bytes()
    content = json.loads(text)
    canonical = is_canonical(text, content)  # the checksum does not cover whitespace
    if content.pop("checksum", None) != checksum(content) or not canonical:
        yield f"{MANIFEST} does not match its own checksum: it was changed after packing"
        return  # nothing else can be trusted
    for name, expected in manifest.files.items():
        path = folder / name
        if not path.is_file():
            yield f"{name} is missing"
        elif hash_file(path) != expected:
            yield f"{name} was changed after packing"
        elif name == REJECTED:
            yield from rejected_faults(folder, manifest)
    named = {entry.file for entry in manifest.shards}
    for path in sorted(path for name in ("*.arrow", SHARDS, REJECTED) for path in folder.glob(name)):
        if path.name not in named and path.name not in manifest.files:
            yield f"{path.name} is not listed in the manifest"
    yield from manifest_faults(folder, manifest)
    done, total = 0, sum(entry.bytes for entry in manifest.shards)
    items, faults = np.zeros(manifest.max_len + 1, np.int64), 0
    for entry in manifest.shards:
        try:
            for fault in _verify_shard(folder, entry, manifest, items):
                faults += 1
                yield fault
        except PackerError as error:
            faults += 1
            yield str(error)
        done += entry.bytes
        progress("verify", done, total)
    if not faults:
        yield from totals_faults(manifest, items)


def _verify_shard(folder: Path, entry: ShardEntry, manifest: Manifest, out_items: NDArray[np.int64]) -> Iterator[str]:
    """Yield a sentence for each fault of a shard, and add its segments (pairs as one) of each extent to `out_items`."""
    path = folder / entry.file
    if path.is_file() and path.stat().st_size == entry.bytes and hash_file(path) != entry.xxh3_128:
        yield f"{entry.file} does not match its hash: it was changed after packing"
        return  # the rows may hold anything
    table = open_shard(folder, entry, manifest)
    found, row = Counts(), 0
    for batch in table.to_batches():
        fault = batch_fault(batch, manifest)
        if fault is not None:
            yield f"{entry.file} rows {row} to {row + batch.num_rows - 1}: {fault}"
        else:
            found = Counts(*map(sum, zip(found, _counts(batch, manifest), strict=True)))
            found_in = sharing_fault(batch, manifest.options)
            if found_in is not None:
                yield f"{entry.file} row {row + found_in[0]} {found_in[1]}"
            else:
                extents = as_numpy(batch["seq_lengths"].values)[as_numpy(batch["doc_ids"].values) != PADDING]
                np.add.at(out_items, extents[::2] + extents[1::2] if manifest.options.pairs else extents, 1)
        row += batch.num_rows
    if found.tokens != entry.tokens:
        yield f"{entry.file} has {found.tokens:,} real tokens, the manifest says {entry.tokens:,}"
    if found.trained != entry.trained:
        yield f"{entry.file} has {found.trained:,} trained tokens, the manifest says {entry.trained:,}"
    if found.untrained_segments != entry.untrained_segments:
        untrained, expected = found.untrained_segments, entry.untrained_segments
        yield f"{entry.file} has {untrained:,} segments without a trained token, the manifest says {expected:,}"


def _counts(batch: pa.RecordBatch, manifest: Manifest) -> Counts:
    """Count the tokens and labels of a record batch that has no faults."""
    layout = _Layout.of(batch, manifest)
    tokens = int(layout.lengths.sum())
    if "labels" not in batch.schema.names:
        return Counts(tokens)
    real = layout.lengths > 0
    return Counts(
        tokens, *count_trained(layout.places[real], layout.extents[real], as_numpy(batch["labels"].flatten()))
    )


def batch_fault(batch: pa.RecordBatch, manifest: Manifest) -> str | None:
    """Return the first fault of a record batch of rows, tokens included, or None."""
    fault = rows_fault(batch, manifest)
    return fault if fault is not None else _tokens_fault(batch, manifest)


class _Layout(NamedTuple):
    """Positions of the segments of a record batch, padding tails included; int64 arrays of shape (segments,)."""

    places: NDArray[np.int64]  # first token in the batch
    extents: NDArray[np.int64]  # tokens and alignment
    lengths: NDArray[np.int64]  # tokens; 0 for a padding tail
    context: NDArray[np.int64]  # tokens at the start that have no loss

    @classmethod
    def of(cls, batch: pa.RecordBatch, manifest: Manifest) -> _Layout:
        segments = {name: as_numpy(batch[name].values).astype(np.int64) for name in manifest.row_format.segment_columns}
        extents, starts = segments["seq_lengths"], segments["doc_starts"]
        lengths = segments.get("seq_tokens", np.where(segments["doc_ids"] == PADDING, 0, extents))
        context = np.where(starts > 0, max(manifest.options.overlap, 1), 1)
        return cls(np.cumsum(extents) - extents, extents, lengths, np.minimum(context, extents))

    def within(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which tokens are at positions begins[s] to ends[s] - 1 of a segment s: bool, shape (tokens,)."""
        edges = np.zeros(int(self.extents.sum()) + 1, np.int32)
        np.add.at(edges, self.places + begins, 1)
        np.add.at(edges, self.places + ends, -1)
        return np.cumsum(edges[:-1]) > 0


def _tokens_fault(batch: pa.RecordBatch, manifest: Manifest) -> str | None:
    """Return the first fault in the token columns of a record batch whose structure is valid, or None."""
    layout = _Layout.of(batch, manifest)
    wanted = manifest.row_format.token_columns
    if sorted(wanted) != sorted(name for name in TOKEN_COLUMNS if name in batch.schema.names):
        return f"the columns are {', '.join(batch.schema.names)}, the options ask for {', '.join(wanted)}"
    flat = {name: as_numpy(batch[name].flatten()) for name in wanted}
    padding = layout.within(layout.lengths, layout.extents)
    if flat["input_ids"].min() < 0:
        return "a token is negative"
    if (flat["input_ids"][padding] != manifest.row_format.pad_id).any():
        return f"padding is not pad_id {manifest.row_format.pad_id}"
    if "labels" in flat:
        untrained = padding | layout.within(np.zeros_like(layout.context), layout.context)
        if (flat["labels"][untrained] != NO_LOSS).any():
            return f"a label of padding, of a segment's first token or of a repeated token is not {NO_LOSS}"
    if "position_ids" in flat:
        expected = np.arange(len(padding)) - np.repeat(layout.places, layout.extents)
        if not np.array_equal(flat["position_ids"], expected):
            return "position_ids do not restart at 0 with every segment"
    return None

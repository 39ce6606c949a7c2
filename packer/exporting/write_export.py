"""Writing shards of a packed dataset as files that a trainer reads: Parquet, Arrow or token ids without header."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from packer.arrow import as_arrow, as_numpy, numpy_dtype
from packer.engines.engine import available_workers, run_tasks
from packer.errors import UNREADABLE, OptionError, PackerError, first_line, system_errors
from packer.exporting.columns import Eos, find_eos, with_eos
from packer.exporting.targets import TARGETS, Target, as_target
from packer.json_records import JsonRecord, ShardEntry
from packer.loader.dataset import PackedDataset
from packer.loader.load import load
from packer.loader.open_shards import rows_of
from packer.options.option import Compression
from packer.options.pack_options import INT32
from packer.output.claim import claim
from packer.output.job import Job, Written
from packer.output.replace_folder import restore
from packer.output.unfinished_output import OutputKind
from packer.progress import TaskSums
from packer.shards.files import CARD, HashingFile, WrittenFile, check_files, shard_number
from packer.shards.files import EXPORT_RECORD as RECORD
from packer.shards.manifest import FORMAT_VERSION
from packer.shards.reader import checked_batches, open_shard, read_manifest
from packer.signals import raise_if_interrupted
from packer.sources.list_checks import as_lists
from packer.stores import AnyPath, is_remote
from packer.stores.hub import called
from packer.stores.paths import local_output, packed_path
from packer.stores.store import Store

EXPORT_VERSION = 2
COMPRESSIONS: tuple[str, ...] = get_args(Compression)

EXPORT = OutputKind(
    name="an export",
    record=RECORD,
    building="export",
    listed=lambda record: [*(file["file"] for file in record["files"]), *record["small_files"]],
)


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Export(JsonRecord):
    """Record of an export. It has no time, host or absolute path, so that equal exports have equal records."""

    to: str
    packed: Mapping[str, object]
    """Fingerprint, format version, max_len, pad_id and number of rows of the packed dataset."""

    compression: str
    """Codec of the Parquet pages."""

    columns: Mapping[str, str]
    """Arrow types of the columns, by name."""

    eos_id: int | None = None
    """Token of the padding, if the target needs EOS there."""

    files: tuple[WrittenFile, ...]
    small_files: Mapping[str, str]
    """Hashes (xxh3-128) of other files, by name."""

    path: AnyPath | None = field(default=None, compare=False)
    """Folder of the export; None if unknown."""

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files)

    def __repr__(self) -> str:
        rows = sum(file.rows or 0 for file in self.files)
        return f"Export(path={str(self.path)!r}, to={self.to!r}, rows={rows}, files={len(self.files)})"

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the record file."""
        return {"export_version": EXPORT_VERSION, **JsonRecord.to_dict(self)}


def export(
    packed: str | Path,
    *,
    to: str,
    compression: str | None = None,
    eos_id: int | None = None,
    job: Job = Job(),  # noqa: B008 (immutable)
) -> Written[Export]:
    """Write a packed dataset in the format of another trainer. A complete export is left as it is.

    Each shard is written separately, one record batch at a time, so that each worker holds a few MB in memory. The
    arguments are documented at `packer.export`. All work is done in this process.
    """
    if as_target(to) not in TARGETS:
        raise PackerError(f"to is {to!r}: choose one of {', '.join(TARGETS)}")
    if compression not in (None, *COMPRESSIONS):
        raise PackerError(f"compression is {compression!r}: choose one of {', '.join(COMPRESSIONS)}")
    target, usual = TARGETS[to], "zstd" if TARGETS[to].ending == ".parquet" else "none"
    if usual == "none" and compression not in (None, usual):
        raise OptionError(f"--compression is {compression}, and an export for {to} has no Parquet files: leave it out")
    compression = compression or usual
    dataset = _load_with_tokens(packed, target)
    if dataset.has_weights and target.columns:
        raise PackerError(
            f"{dataset.path} has weights of the loss, and {to} has no column for them: choose --to parquet, or remove "
            "the weights from the source"
        )
    out = _output(dataset.path, job.output, to)
    facts = {
        "fingerprint": dataset.fingerprint,
        "format_version": FORMAT_VERSION,
        "max_len": dataset.max_len,
        "pad_id": dataset.pad_id,
        "rows": len(dataset),
    }
    with system_errors(out, resumes=False):
        restore(out, EXPORT)
        eos = _eos(dataset, to, eos_id)
        padding = eos.id if eos is not None else None
        found = None if job.overwrite else _complete_export(out, to, compression, padding, facts)
        if found is not None:
            return Written(record=found, output=out, found_complete=True, checked="its files have the recorded sizes")
        with claim(out, EXPORT, None, job) as folder:
            rows = open_shard(dataset.path, dataset.manifest.shards[0], dataset.manifest).schema  # with kept columns
            schema = schema_of(target, rows)
            files = _write_files(dataset, target, eos, schema, compression, folder.store, job)
            small = target.small_files(dataset, [file.file for file in files])
            record = Export(
                to=to,
                packed=facts,
                compression=compression,
                columns={field.name: f"list<{field.type.value_type}>" for field in schema},
                eos_id=padding,
                files=files,
                small_files={name: xxhash.xxh3_128_hexdigest(content) for name, content in small.items()},
            )
            folder.finish((json.dumps(record.to_dict(), indent=1) + "\n").encode(), small)
    return Written(record=record, output=out)


def _load_with_tokens(packed: str | Path, target: Target) -> PackedDataset:
    """Open a packed dataset, which must be on a disk and contain tokens, and no trees unless shards are kept."""
    if is_remote(packed):
        raise PackerError(f"{packed} is in object storage: copy the packed dataset to a local folder to export it")
    read_manifest(packed_path(packed), intact=True)  # first, because sizes are compared with it
    dataset = load(packed)
    if dataset.manifest.options.lengths_column is not None:
        raise PackerError(f"{packed} was packed from lengths alone, so there are no tokens to export")
    if dataset.manifest.options.has_trees and not target.keeps_shards:
        raise PackerError(
            f"{packed} holds trees (--pairs, --share-prefixes), whose branches would see each other in trainers that "
            "read Parquet: pack without these options to export it"
        )
    if dataset.manifest.options.index_only:
        raise PackerError(f"{packed} is an index without tokens: pack its source without --index-only, and export that")
    return dataset


def _output(packed: AnyPath, output: str | AnyPath | None, to: str) -> Path:
    """Return the folder to write, by default next to the packed dataset, or for a download in the current folder."""
    assert isinstance(packed, Path)
    source = packed if packed.name not in ("", "..") else packed.resolve()
    near = called(source)
    out = local_output(output if output is not None else near.with_name(f"{near.name}-{to}"), "packer export")
    real = Path(os.path.realpath(out))
    if source.resolve() in (real, *real.parents):
        raise PackerError(f"{out} is inside the packed dataset: choose an --output next to it")
    return out


def _eos(dataset: PackedDataset, to: str, eos_id: int | None) -> Eos | None:
    """Return the token that must pad files for a trainer. Returns None if any token may."""
    ends = TARGETS[to].pads_with_eos
    if eos_id is not None and ends is None:
        by_eos = ", ".join(name for name, target in TARGETS.items() if target.pads_with_eos)
        raise PackerError(
            f"--eos-id is {eos_id}, and an export for {to} has no EOS padding: leave it out; it is for {by_eos}"
        )
    if eos_id is not None and not 0 <= eos_id <= INT32:
        raise PackerError(f"--eos-id is {eos_id}: choose a token id from 0 to {INT32:,}")
    if ends is None or (ends == "aligned" and "seq_tokens" not in dataset.column_names):
        return None
    return Eos(find_eos(dataset) if eos_id is None else eos_id, ends, to, is_given=eos_id is not None)


def _complete_export(
    out: Path, to: str, compression: str, eos_id: int | None, packed: Mapping[str, Any]
) -> Export | None:
    """Check that the files of an export are intact, and return its record. Returns None if there is no readable record.

    Raises a PackerError if it is a different export from the requested one.
    """
    try:
        record = json.loads((out / RECORD).read_bytes())
        if record.pop("export_version") != EXPORT_VERSION:
            return None
        found = Export.from_dict(record)
    except (OSError, *UNREADABLE):
        return None
    differs = {
        f"to {found.to}, not {to}": found.to != to,
        "from other rows": found.packed != packed,
        f"with compression {found.compression}, not {compression}": found.compression != compression,
        f"with EOS {found.eos_id}, not {eos_id}": found.eos_id != eos_id,
    }
    for words in (words for words, is_other in differs.items() if is_other):
        raise PackerError(
            f"{out} is complete, exported {words}: choose another --output, or replace it with --overwrite"
        )
    unchanged = {name: digest for name, digest in found.small_files.items() if name != CARD}
    check_files(out / RECORD, found.files, unchanged)
    return found


def _write_files(
    dataset: PackedDataset, target: Target, eos: Eos | None, schema: pa.Schema, compression: str, store: Store, job: Job
) -> tuple[WrittenFile, ...]:
    """Write the files of each shard, which depend only on the shard, the target and the options.

    Raises a PackerError if a shard was changed after packing, or has values that the target cannot represent.
    """
    packed, manifest = dataset.path, dataset.manifest
    report = TaskSums(lambda rows: job.progress("export", rows * manifest.max_len, manifest.rows * manifest.max_len))

    def write(entry: ShardEntry) -> tuple[str, list[WrittenFile]]:
        written = 0
        shard = entry.file.removesuffix(".arrow")
        names = [name.format(shard=shard) for name in target.files]
        with ExitStack() as stack:
            paths = [stack.enter_context(store.temporary(name)) for name in names]
            files = [stack.enter_context(HashingFile(path)) for path in paths]
            try:
                with _writer(target, files, schema, compression, open_shard(packed, entry, manifest)) as writer:
                    for batch in checked_batches(packed, entry, manifest):
                        raise_if_interrupted()
                        writer.write_table(convert(target, batch, eos))
                        written += batch.num_rows
                        report(shard_number(entry.file), written)
            except (pa.ArrowException, ValueError, NotImplementedError) as error:
                reason = f"{packed / entry.file} cannot be exported ({first_line(error)})"
                raise PackerError(f"{reason}: choose another --to") from error
            for file in files:
                file.close()
            store.put_files(dict(zip(names, paths, strict=True)))
        return entry.file, [
            WrittenFile(file=name, rows=None if at else entry.rows, bytes=file.bytes, xxh3_128=file.hexdigest())
            for at, (name, file) in enumerate(zip(names, files, strict=True))
        ]

    def link(entry: ShardEntry) -> tuple[str, list[WrittenFile]]:
        raise_if_interrupted()
        report(shard_number(entry.file), sum(batch.num_rows for batch in checked_batches(packed, entry, manifest)))
        with store.temporary(entry.file) as path:
            shard = os.path.realpath(str(packed / entry.file))
            try:
                path.hardlink_to(shard)
            except OSError:  # another file system, another owner
                shutil.copyfile(shard, path)
            store.put_files({entry.file: path})
        return entry.file, [WrittenFile(file=entry.file, rows=entry.rows, bytes=entry.bytes, xxh3_128=entry.xxh3_128)]

    written = dict(
        run_tasks(link if target.keeps_shards else write, [*manifest.shards], job.workers or available_workers())
    )
    return tuple(file for entry in manifest.shards for file in written[entry.file])


_LARGEST_VOCABULARY_OF_UINT16 = 65_500  # in Megatron-LM
_CODES = {np.dtype(np.uint16): 8, np.dtype(np.int32): 4}  # codes of token types in .idx


class IndexedWriter:
    """Writer of `.bin`, the token ids of all rows, and `.idx`, in which each row is a sequence and a document."""

    def __init__(self, tokens: HashingFile, index: HashingFile, shard: pa.Table) -> None:
        self._tokens, self._index, self._rows = tokens, index, len(shard)
        self._length: int = shard["input_ids"].type.list_size
        largest = pc.max(pc.list_flatten(shard["input_ids"])).as_py()
        self._type = np.dtype(np.uint16 if largest < _LARGEST_VOCABULARY_OF_UINT16 else np.int32)

    def __enter__(self) -> IndexedWriter:
        return self

    def write_table(self, table: pa.Table) -> None:
        """Write the next rows."""
        for rows in table["tokens"].chunks:
            self._tokens.write(as_numpy(rows.flatten()).astype(self._type).data)

    def __exit__(self, *_: object) -> None:
        self._index.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, _CODES[self._type], self._rows, self._rows + 1))
        self._index.write(np.full(self._rows, self._length, np.int32).data)
        self._index.write((np.arange(self._rows, dtype=np.int64) * (self._length * self._type.itemsize)).data)
        self._index.write(np.arange(self._rows + 1, dtype=np.int64).data)


def _writer(target: Target, files: list[HashingFile], schema: pa.Schema, compression: str, shard: pa.Table) -> Any:
    """Open the writer of a shard's files, a context manager with the method `write_table`."""
    if target.ending == ".arrow":
        return pa.ipc.new_stream(*files, schema)
    if target.ending == ".bin":
        return IndexedWriter(files[0], files[1], shard)
    return pq.ParquetWriter(
        *files,
        schema,
        compression=compression,
        use_dictionary=False,  # with zstd, files are smaller without a dictionary and take no longer
        write_statistics=False,  # statistics of values within lists are not useful
    )


def schema_of(target: Target, rows: pa.Schema) -> pa.Schema:
    """Return the Arrow schema of a target's files, given the schema of the shards."""
    types = {name: pa.type_for_alias(values) for name, values in target.columns.items()}
    types = types or {field.name: field.type.value_type for field in rows}
    return pa.schema([pa.field(name, pa.list_(values)) for name, values in types.items()])


def convert(target: Target, batch: pa.RecordBatch, eos: Eos | None = None) -> pa.Table:
    """Make a target's columns from a record batch of rows. Raises a PackerError for values that do not fit in them."""
    schema = schema_of(target, batch.schema)
    if not target.columns:
        typed = zip(batch.columns, schema.types, strict=True)  # Parquet has no lists of fixed size
        return pa.Table.from_arrays(
            [each if each.type == kind else each.cast(kind) for each, kind in typed], schema=schema
        )
    rows = rows_of(batch)
    columns = target.values(rows if eos is None else [with_eos(row, eos) for row in rows])
    return pa.Table.from_arrays([_lists(columns[field.name], field.type) for field in schema], schema=schema)


def _lists(rows: Sequence[NDArray[Any]], kind: pa.DataType) -> pa.Array:
    """Make a column of lists from one array per row."""
    values = np.concatenate(rows).astype(numpy_dtype(kind.value_type), copy=False)
    return as_lists(as_arrow(values), np.array([*map(len, rows)]), kind)

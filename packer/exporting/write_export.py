"""Write the shards of a packed dataset as files of Parquet, or of Arrow, with the columns of a trainer."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from packer.arrow import as_arrow, numpy_dtype
from packer.engine import available_workers, run_tasks
from packer.errors import UNREADABLE, PackerError, first_line
from packer.exporting.targets import TARGETS, Target
from packer.facts import ShardEntry
from packer.facts.json_record import JsonRecord
from packer.loader.dataset import PackedDataset, load
from packer.loader.open_shards import rows_of
from packer.options.choices import Compression
from packer.output.claim import claim
from packer.output.replace_folder import restore
from packer.output.unfinished_output import Kind
from packer.paths import expanded, local_output
from packer.pipeline.complete_output import WrittenFile, check_files
from packer.pipeline.job import Job, Written
from packer.shards.files import HashingFile
from packer.shards.manifest import datasets_files
from packer.shards.reader import checked_batches, open_shard, read_manifest
from packer.stores import AnyPath, any_path, is_remote
from packer.system_errors import system_errors

EXPORT_VERSION = 1
COMPRESSIONS: tuple[str, ...] = get_args(Compression)

RECORD = "_export.json"
"""Name of the record of an export. Readers of Parquet folders ignore names that begin with an underscore."""

DATASETS_FILES = ("dataset_info.json", "state.json")
"""Names of the files with which `datasets` opens a folder of Arrow."""


def _listed(record: Mapping[str, Any]) -> list[str]:
    """Return the names of the files of an export, given the content of its record."""
    target = TARGETS.get(record["to"])
    others = DATASETS_FILES if target is not None and target.is_arrow else ()
    return [*(file["file"] for file in record["files"]), *others]


EXPORT = Kind(
    name="an export",
    record=RECORD,
    building="export",
    listed=_listed,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Export(JsonRecord):
    """Record of an export: no time, host or absolute path, so that equal exports have equal records."""

    to: str
    """Name of the target."""

    packed: Mapping[str, object]
    """Fingerprint, format version, max_len, pad_id and number of rows of the packed dataset."""

    compression: str
    """Codec of the Parquet pages."""

    columns: Mapping[str, str]
    """Arrow types of the columns, by name."""

    files: tuple[WrittenFile, ...]
    """Files in the order of the shards, one per shard."""

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the record file."""
        return {"export_version": EXPORT_VERSION, **JsonRecord.to_dict(self)}


def export(
    packed: str | Path,
    *,
    to: str,
    compression: str = "zstd",
    job: Job = Job(),  # noqa: B008 (immutable)
) -> Written[Export]:
    """Write a packed dataset as Parquet, or Arrow, for another trainer; an export that is complete is left as it is.

    A shard becomes a file and a record batch a row group, so that each worker holds a few MB in memory. The arguments
    are those of `packer.export`; the job is done by this process alone.
    """
    if to not in TARGETS:
        raise PackerError(f"to is {to!r}: choose one of {', '.join(TARGETS)}")
    if compression not in COMPRESSIONS:
        raise PackerError(f"compression is {compression!r}: choose one of {', '.join(COMPRESSIONS)}")
    target = TARGETS[to]
    compression = "none" if target.is_arrow else compression
    dataset = _load_with_tokens(packed)
    out = _output(dataset.path, job.output, to)
    facts = {
        "fingerprint": dataset.fingerprint,
        "format_version": dataset.manifest.format_version,
        "max_len": dataset.max_len,
        "pad_id": dataset.pad_id,
        "rows": len(dataset),
    }
    with system_errors(out, resumes=False):
        restore(out, EXPORT)
        found = None if job.overwrite else _complete_export(out, to=to, compression=compression, packed=facts)
        if found is not None:
            return Written(record=found, output=out, found_complete=True, checked="its files have the recorded sizes")
        with claim(out, EXPORT, None, job) as folder:
            rows = open_shard(dataset.path, dataset.manifest.shards[0], dataset.manifest).schema  # with kept columns
            schema = schema_of(target, rows)
            record = Export(
                to=to,
                packed=facts,
                compression=compression,
                columns={field.name: f"list<{field.type.value_type}>" for field in schema},
                files=_write_files(dataset, target, schema, compression, folder.building, job),
            )
            names = [file.file for file in record.files]
            small = datasets_files(dataset.manifest.source, names) if target.is_arrow else {}
            folder.finish((json.dumps(record.to_dict(), indent=1) + "\n").encode(), small)
    return Written(record=record, output=out)


def _load_with_tokens(packed: str | Path) -> PackedDataset:
    """Open a packed dataset, which must be on a disk and hold its tokens."""
    if is_remote(packed):
        raise PackerError(f"{packed} is in object storage: copy the packed dataset to a local folder to export it")
    read_manifest(any_path(expanded(packed)), intact=True)  # before sizes in it are compared
    dataset = load(packed)
    if dataset.manifest.options.lengths_column is not None:
        raise PackerError(f"{packed} was packed from lengths alone, so there are no tokens to export")
    if dataset.manifest.options.share_prefixes:
        raise PackerError(
            f"{packed} holds trees (--share-prefixes), whose branches would see each other in trainers that read "
            "Parquet: pack without --share-prefixes to export it"
        )
    if dataset.manifest.options.index_only:
        raise PackerError(
            f"{packed} is an index without tokens: write its rows by `packer materialize`, and export these"
        )
    return dataset


def _output(packed: AnyPath, output: str | AnyPath | None, to: str) -> Path:
    """Return the folder to write, by default next to the packed dataset."""
    assert isinstance(packed, Path)
    source = packed if packed.name not in ("", "..") else packed.resolve()
    out = local_output(output if output is not None else source.parent / f"{source.name}-{to}", "packer export")
    real = Path(os.path.realpath(out))
    if source.resolve() in (real, *real.parents):
        raise PackerError(f"{out} is inside the packed dataset: choose an --output next to it")
    return out


def _complete_export(out: Path, *, to: str, compression: str, packed: Mapping[str, Any]) -> Export | None:
    """Return the record of a complete export, which must be the one that is asked for, with intact files.

    None stands for no export, and for a record that cannot be read.
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
    }
    for words in (words for words, is_other in differs.items() if is_other):
        raise PackerError(
            f"{out} is complete, exported {words}: choose another --output, or replace it with --overwrite"
        )
    check_files(out / RECORD, found.files, {})
    return found


def _write_files(
    dataset: PackedDataset, target: Target, schema: pa.Schema, compression: str, folder: Path, job: Job
) -> tuple[WrittenFile, ...]:
    """Write the file of each shard, which depends on the shard, the target and the compression only.

    A shard that was changed after packing, or has values that the target cannot hold, is a PackerError.
    """
    packed, manifest = dataset.path, dataset.manifest
    counting, done = threading.Lock(), 0  # tokens that all threads have written

    def write(entry: ShardEntry, raise_if_cancelled: Callable[[], None]) -> tuple[str, WrittenFile]:
        nonlocal done
        name = entry.file.removesuffix(".arrow") + target.ending
        sink = HashingFile(folder / name)
        try:
            with _writer(target, sink, schema, compression) as file:
                for batch in checked_batches(packed, entry, manifest):
                    raise_if_cancelled()
                    file.write_table(convert(target, batch))
                    with counting:
                        done += batch.num_rows * manifest.max_len
                        job.progress("export", done, manifest.rows * manifest.max_len)
            if job.sync:
                sink.sync()
        except (pa.ArrowException, ValueError, NotImplementedError) as error:
            reason = f"{packed / entry.file} cannot be written as Parquet ({first_line(error)})"
            raise PackerError(f"{reason}: choose another --to") from error
        finally:
            sink.close()
        return entry.file, WrittenFile(file=name, rows=entry.rows, bytes=sink.bytes, xxh3_128=sink.hexdigest())

    written = dict(run_tasks(write, manifest.shards, job.workers or available_workers()))
    return tuple(written[entry.file] for entry in manifest.shards)


def _writer(target: Target, sink: HashingFile, schema: pa.Schema, compression: str) -> Any:
    if target.is_arrow:
        return pa.ipc.new_stream(sink, schema)
    return pq.ParquetWriter(
        sink,
        schema,
        compression=compression,
        use_dictionary=False,  # with zstd, files are smaller without a dictionary and take no longer
        write_statistics=False,  # statistics of values within lists are of no use
    )


def schema_of(target: Target, rows: pa.Schema) -> pa.Schema:
    """Return the Arrow schema of a target's files, from that of the shards."""
    types = {name: pa.type_for_alias(values) for name, values in target.columns.items()}
    types = types or {field.name: field.type.value_type for field in rows}
    return pa.schema([pa.field(name, pa.list_(values)) for name, values in types.items()])


def convert(target: Target, batch: pa.RecordBatch) -> pa.Table:
    """Make a target's columns from a record batch of rows; values that they cannot hold are a PackerError."""
    schema = schema_of(target, batch.schema)
    if not target.columns:
        return pa.Table.from_batches([batch]).cast(schema)  # Parquet has no lists of fixed size
    columns = target.values(rows_of(batch))
    return pa.Table.from_arrays([_lists(columns[field.name], field.type.value_type) for field in schema], schema=schema)


def _lists(rows: Sequence[NDArray[Any]], values_type: pa.DataType) -> pa.Array:
    """Make a column of lists from one array per row."""
    ends = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row) for row in rows], out=ends[1:])
    values = np.concatenate(rows).astype(numpy_dtype(values_type), copy=False)
    return pa.ListArray.from_arrays(as_arrow(ends), as_arrow(values))

"""Write the shards of a packed dataset as Parquet files with the columns of a trainer."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from packer.errors import PackerError
from packer.executors import available_workers, run_tasks
from packer.exporting.folder import RECORD, whole_folder
from packer.exporting.targets import TARGETS, Target
from packer.loader import load
from packer.paths import output_folder
from packer.progress import Progress, silent
from packer.shards.files import HashingFile, hash_file
from packer.shards.manifest import FORMAT_VERSION, Manifest, ShardEntry
from packer.shards.reader import check_batch, open_shard
from packer.system_errors import system_errors

EXPORT_VERSION = 1
COMPRESSIONS = ("zstd", "snappy", "none")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedFile:
    """What is said of one file."""

    file: str
    """File name, in the folder of the export."""

    rows: int
    """Packs in it."""

    bytes: int
    """Size of the file."""

    xxh3_128: str
    """Hash of the file, hexadecimal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """What an export is; no time, host or absolute path, so that equal exports have equal records."""

    to: str
    """The target."""

    packed: Mapping[str, Any]
    """What was exported: fingerprint, format version, max_len, pad_id and rows of the packed dataset."""

    compression: str
    """Codec of the Parquet pages."""

    columns: Mapping[str, str]
    """Arrow types of the columns, by name."""

    files: tuple[ExportedFile, ...]
    """The files, one for each shard and in their order."""

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files)

    def to_dict(self) -> dict[str, Any]:
        """Return what stands in the record."""
        return {"export_version": EXPORT_VERSION, **asdict(self)}


def export(
    packed: str | Path,
    output: str | Path | None = None,
    *,
    to: str,
    compression: str = "zstd",
    workers: int | None = None,
    sync: bool = True,
    overwrite: bool = False,
    progress: Progress = silent,
) -> tuple[Export, Path]:
    """Write a packed dataset as Parquet for another trainer; return what was written, and its folder.

    A shard becomes a file, and a record batch a row group, so that no more than a few MB a worker are in memory.

    Args:
        packed: folder of the packed dataset.
        output: folder to write; by default the packed dataset's name with "-TARGET".
        to: which columns; a name in TARGETS.
        compression: of the Parquet pages; one of COMPRESSIONS.
        workers: files written at a time; by default the cores this process may use. Does not change the bytes.
        sync: fsync every file and folder.
        overwrite: replace an export that is there, when the new one is whole.
        progress: told of the tokens written, as "export".

    Raises:
        PackerError: anything in the user's hands, in one line.
    """
    if to not in TARGETS:
        raise PackerError(f"to is {to!r}: choose one of {', '.join(TARGETS)}")
    if compression not in COMPRESSIONS:
        raise PackerError(f"compression is {compression!r}: choose one of {', '.join(COMPRESSIONS)}")
    dataset = load(packed)
    folder = dataset.path if dataset.path.name not in ("", "..") else dataset.path.resolve()
    out = output_folder(output if output is not None else folder.parent / f"{folder.name}-{to}")
    real = Path(os.path.realpath(out))
    if folder.resolve() in (real, *real.parents):
        raise PackerError(f"{out} is inside the packed dataset: choose an --output beside it")
    manifest = dataset.manifest
    with system_errors(out, resumes=False), whole_folder(out, overwrite=overwrite, sync=sync) as part:
        writer = _Writer(
            packed=dataset.path,
            folder=part,
            target=TARGETS[to],
            manifest=manifest,
            compression=compression,
            sync=sync,
            told=_Told(progress, len(dataset) * dataset.max_len),
        )
        found = {file.file: file for file in run_tasks(writer.write, manifest.shards, workers or available_workers())}
        record = Export(
            to=to,
            packed={
                "fingerprint": dataset.fingerprint,
                "format_version": FORMAT_VERSION,
                "max_len": dataset.max_len,
                "pad_id": dataset.pad_id,
                "rows": len(dataset),
            },
            compression=compression,
            columns={field.name: f"list<{field.type.value_type}>" for field in writer.schema(manifest.shards[0])},
            files=tuple(found[writer.name(entry)] for entry in manifest.shards),
        )
        _write_record(part / RECORD, record, sync=sync)
    return record, out


class _Told:
    """Progress of several threads."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._counting = threading.Lock()

    def add(self, tokens: int) -> None:
        with self._counting:
            self._done += tokens
            self._progress("export", self._done, self._total)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Writer:
    """Writes the file of a shard: a pure function of the shard, the target and the compression."""

    packed: Path
    folder: Path
    target: Target
    manifest: Manifest
    compression: str
    sync: bool
    told: _Told

    def name(self, entry: ShardEntry) -> str:
        """File name of a shard's export: data-00000-of-00012.parquet."""
        return entry.file.removesuffix(".arrow") + self.target.ending

    def schema(self, entry: ShardEntry) -> pa.Schema:
        """Arrow schema of a shard's export."""
        return self.target.schema(open_shard(self.packed, entry, self.manifest).schema)

    def write(self, entry: ShardEntry, go_on: Callable[[], None]) -> ExportedFile:
        """Write the file of a shard, as long as `go_on` does not raise.

        Raises:
            OSError: the disk is full, or anything else that the system refuses.
            PackerError: the shard was changed after packing, or holds what the target cannot say.
        """
        table, path = open_shard(self.packed, entry, self.manifest), self.packed / entry.file
        if hash_file(path) != entry.xxh3_128:
            raise PackerError(f"{path} was changed after packing: restore it, or pack again")
        sink = HashingFile(self.folder / self.name(entry))
        try:
            with pq.ParquetWriter(
                sink,
                self.target.schema(table.schema),
                compression=self.compression,
                use_dictionary=False,  # with zstd the files are smaller without, and it takes no longer
                write_statistics=False,  # of no use for values in lists
            ) as parquet:
                for batch in table.to_batches():
                    go_on()
                    check_batch(batch, path, self.manifest)
                    parquet.write_table(self.target.convert(batch))
                    self.told.add(batch.num_rows * self.manifest.max_len)
            if self.sync:
                sink.sync()
        except (pa.ArrowException, ValueError, NotImplementedError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise PackerError(f"{path} cannot be written as Parquet ({reason}): choose another --to") from error
        finally:
            sink.close()
        return ExportedFile(file=self.name(entry), rows=table.num_rows, bytes=sink.bytes, xxh3_128=sink.hexdigest())


def _write_record(path: Path, record: Export, *, sync: bool) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(record.to_dict(), indent=1) + "\n")
        file.flush()
        if sync:
            os.fsync(file.fileno())

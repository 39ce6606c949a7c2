"""An unfinished packed dataset in object storage.

OUT/data-00000-of-00012.arrow     shards, at once under their names: an object appears whole, or not at all
OUT/manifest.json                 written last, if absent
OUT/.packer/request.json          options and source files, put if absent by the process that begins the dataset
OUT/.packer/ranks/                signs of life
OUT/.packer/ID/                   spill, notes and committed, as in a local folder; ID is a hash of the request, so that
                                  what a process of another request may still write is never read

Every process is a rank, because there are no locks: a single one is rank 0 of 1. Everything that is needed to resume is
in the store, so any machine can do that.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from packer.errors import PackerError
from packer.facts import REJECTED
from packer.output.output_folder import REQUEST, SHARD
from packer.output.packed_output import PACKED, entry_bytes, entry_of
from packer.output.request import Request
from packer.shards.file_names import SHARDS, WORK, or_other_output
from packer.shards.manifest_fields import ShardEntry
from packer.stores import RemotePath
from packer.stores.listing import folder_sizes
from packer.stores.requests import in_parallel
from packer.stores.temporary_files import temporary_file, temporary_folder


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredPack:
    """A dataset in object storage that this process has claimed; see `UnfinishedPack`."""

    out: RemotePath
    """Path of the dataset."""

    request: bytes
    """Content of the request, which must stay the same while this process writes."""

    @classmethod
    def of(cls, out: RemotePath, request: Request) -> StoredPack:
        """Return the dataset at this path for this request."""
        return cls(out=out, request=json.dumps(request.to_dict()).encode())

    @property
    def work(self) -> RemotePath:
        """Folder of everything that is removed once the dataset is complete."""
        return self.out / WORK

    @property
    def request_path(self) -> RemotePath:
        """Path of the request."""
        return self.work / REQUEST

    @property
    def own(self) -> RemotePath:
        """Folder in `work` for this request alone."""
        return self.work / xxhash.xxh3_64_hexdigest(self.request)

    @property
    def spill(self) -> RemotePath:
        """Folder of decoded sources."""
        return self.own / "spill"

    @property
    def notes(self) -> RemotePath:
        """Folder of the notes of the plan."""
        return self.own / "notes"

    @property
    def entries(self) -> RemotePath:
        """Folder of the entries of committed shards."""
        return self.own / "committed"

    @property
    def signs(self) -> RemotePath:
        """Folder of the signs of life of the processes that write it."""
        return self.work / "ranks"

    @property
    def sync(self) -> bool:
        """False: what is uploaded lasts, and temporary files need not."""
        return False

    @property
    def is_shared(self) -> bool:
        """True: other processes cannot be kept out."""
        return True

    @property
    def disk(self) -> Path:
        """Folder of the temporary files."""
        return temporary_folder()

    def disk_needed(self, rows: int, at_once: int) -> int:
        """Return the bytes of temporary files; see `UnfinishedPack.disk_needed`."""
        return min(rows, at_once)

    def is_complete(self) -> bool:
        """Whether the manifest is written."""
        return PACKED.is_complete(self.out)

    def temporary(self, name: str) -> contextlib.AbstractContextManager[Path]:
        """Return a context that yields a local path to write to, which is removed at the end."""
        return temporary_file(name)

    def put(self, temporary: Path, name: str) -> None:
        """Upload a written file."""
        (self.out / name).upload(temporary)

    def write_note(self, name: str, content: bytes, *, lasting: bool) -> None:
        """Write a note; see `UnfinishedPack.write_note`."""
        with contextlib.suppress(FileExistsError):
            (self.notes / name).write_bytes(content, if_absent=lasting)

    def commit(self, temporary: Path, entry: ShardEntry) -> None:
        """Upload a written shard: first its entry, then the shard itself.

        Raises:
            PackerError: another command has started the dataset again.
        """
        self.check_request()
        (self.entries / f"{entry.file}.json").write_bytes(entry_bytes(entry))
        self.put(temporary, entry.file)

    def committed(self, names: Sequence[str]) -> dict[str, ShardEntry]:
        """Return the entries of shards in place, by name; see `UnfinishedPack.committed`."""
        sizes = folder_sizes(self.out) if names else {}
        there = [name for name in names if name in sizes]
        entries = zip(there, in_parallel(self._entry, there), strict=True)
        return {name: entry for name, entry in entries if entry is not None and entry.bytes == sizes[name]}

    def _entry(self, name: str) -> ShardEntry | None:
        try:
            return entry_of((self.entries / f"{name}.json").read_bytes())
        except FileNotFoundError:
            return None

    def is_intact(self, entry: ShardEntry) -> bool:
        """True: an object appears whole, and the store checks what it holds."""
        return True

    def forget_plan(self) -> None:
        """Remove the notes of the plan, and the shards made from it."""
        self.notes.remove_all()
        self._remove_shards()
        self.entries.remove_all()

    def clear(self) -> None:
        """Remove everything; the request last, so that the command that removes can be repeated."""
        self._remove_shards()
        for left in self.work.files():
            if left != self.request_path:
                left.unlink(missing_ok=True)
        self.request_path.unlink(missing_ok=True)

    def _remove_shards(self) -> None:
        for name in folder_sizes(self.out):
            if SHARD.fullmatch(name) or name in (REJECTED, SHARDS):
                (self.out / name).unlink(missing_ok=True)

    def check_request(self) -> None:
        """Raise a PackerError if another command has started the dataset again, or has finished it."""
        try:
            found = self.request_path.read_bytes()
        except FileNotFoundError:
            found = b""
        if found != self.request:
            raise PackerError(
                f"{self.out} was finished, removed or started again by another packer: "
                f"repeat the command{or_other_output(self.out)}"
            )

    def _write_beside(self, name: str, content: bytes) -> None:
        """Write a small file; one that another command has left is replaced only if the request is still this one's."""
        path = self.out / name
        try:
            path.write_bytes(content, if_absent=True)
        except FileExistsError:
            self.check_request()
            path.write_bytes(content)

    def finish(self, record: bytes, files: Mapping[str, bytes]) -> bool:
        """Write small files, then the manifest; see `UnfinishedPack.finish`.

        Always True: an equal manifest may be the own one, of a request that was repeated because its answer was lost.

        Raises:
            PackerError: another command has begun or finished the dataset.
        """
        self.check_request()
        for name, content in files.items():
            self._write_beside(name, content)
        path = self.out / PACKED.record
        try:
            path.write_bytes(record, if_absent=True)
        except FileExistsError:
            if path.read_bytes() != record:
                raise PackerError(
                    f"{self.out} was finished by another packer just now: repeat the command{or_other_output(self.out)}"
                ) from None
        return True

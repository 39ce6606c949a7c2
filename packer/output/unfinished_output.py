"""Unfinished outputs, and the requests that begin and resume them.

An output appears complete or not at all. Its request holds everything that determines it.

OUT                       a packed dataset is built here, unless a complete output exists
.OUT.packer-new           its replacement is built here and swapped in at the end
.OUT.packer-tokenizing    a tokenized dataset is built here, and an export in .OUT.packer-export; never in OUT
    .packer/lock            lock held by the working process; moves along with the swap; not in object storage
    .packer/request.json    options and source files of the output; only an equal request resumes it
    .packer/ID/spill/       decoded copies of sources that cannot be mapped, or shards of a tokenized dataset
    .packer/ID/checkpoints/ results of finished tasks, and in committed/, entries of shards that are in place
    .packer/ranks/          heartbeats
    .packer/*               temporary files

The record is written last; without it, an output is unfinished. All files that are needed to resume are in the store. A
checkpoint, decoded source or shard that does not match its hash is made again.

Processes claim an output by its lock, in object storage by its request (`claim.py`). If an output is removed and begun
again while one of its processes is slow, that process puts nothing in place, because the lock then has another content
(`stores.store.Claim`). ID is a hash of the request. If a process still writes files for another request, they are in
another folder and are never read.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import xxhash

from packer.engines.checkpoints import Checkpoint, Checkpoints
from packer.errors import UNREADABLE, PackerError
from packer.json_records import REJECTED, Count, FileIdentity, JsonRecord, ShardEntry, TextIdentity
from packer.options import PackOptions, RunOptions, byte_size, options_of
from packer.progress import Progress
from packer.shards.files import CARD, MANIFEST, WORK, hash_file, matches, names_listed
from packer.sources.source import Source
from packer.stores import AnyPath
from packer.stores.local_files import temporary_folder
from packer.stores.store import Folder, Store


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestedFile(JsonRecord):
    """Facts about a source file that show whether it has changed."""

    name: str
    """Path relative to the source."""

    bytes: Count
    mtime_ns: int | None = None
    """Time of the last write, in nanoseconds since 1970; None for datasets in memory, or if times are ignored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request(JsonRecord):
    """Everything that determines an output. An equal request can resume it."""

    options: Mapping[str, object]
    """Options that affect the output, as JSON values by name."""

    files: tuple[RequestedFile, ...]
    text: TextIdentity | None = None
    """Everything that determines how text becomes tokens; None for a source of tokens."""

    @property
    def without_times(self) -> Request:
        """The request without modification times of files."""
        return replace(self, files=names_and_sizes(self.files))


def names_and_sizes(files: Iterable[RequestedFile | FileIdentity]) -> tuple[RequestedFile, ...]:
    """Return the name and size of each file, which are equal in a copy of the file."""
    return tuple(RequestedFile(name=file.name, bytes=file.bytes) for file in files)


def difference(begun: Request, request: Request) -> str:
    """Describe the first difference between two requests: "with max_len 2048, not 4096"."""
    one, other = ([file.name for file in each.files] for each in (begun, request))
    # Compare files before options, because another source may imply another column or padding.
    if one != other:
        pair = next(((a, b) for a, b in zip(one, other, strict=False) if a != b), None)
        return "from other source files" + (f" ({pair[0]}, not {pair[1]})" if pair else "")
    if begun.options.get("plan_version") != request.options.get("plan_version"):
        return "of another version of packer, which places documents by other rules"
    declared = options_of(PackOptions).items()
    defaults = {name: [*each.default] if isinstance(each.default, tuple) else each.default for name, each in declared}
    texts = ({} if each.text is None else each.text.to_dict() for each in (begun, request))
    for made, asked in ((begun.options, request.options), tuple(texts)):
        for name in dict.fromkeys([*asked, *made]):
            if made.get(name) != asked.get(name):
                found, wanted = (facts.get(name, defaults.get(name)) for facts in (made, asked))
                return f"with {name} {_short(found)}, not {_short(wanted)}"
    return "from a source that has changed since"


def request_of(opened: Source, options: Mapping[str, object]) -> Request:
    """Return the request for an output of this source. options: JSON values by name."""
    return Request(
        options=options,
        files=tuple(
            RequestedFile(
                name=file.name,
                bytes=file.bytes,
                mtime_ns=max((path.stat().st_mtime_ns for path in file.paths), default=None),
            )
            for file in opened.files
        ),
        text=opened.text,
    )


def _short(value: object) -> str:
    """Format a value in one line of at most 60 characters, because chat templates are long."""
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


LOCK = "lock"
"""File in WORK that the working process locks."""

REQUEST = "request.json"
"""File in WORK with the request that began the output."""

_SHARD = re.compile(r"data-\d{5,}-of-\d{5,}\.arrow")
_WRITTEN_HERE = re.compile(
    r"(data-\d+-of-\d+|\d{5}-\d{5})(\.\w+)+|state\.json|dataset_info\.json|"
    r"rejected\.jsonl|lock|_packing_metadata|(token_ids|labels_mask)_part_\d+(\.\w+)+"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputKind:
    """A kind of output: a packed dataset, a tokenized dataset or an export."""

    name: str
    """Name in messages, with its article: "a packed dataset"."""

    record: str
    """Name of the JSON file that is written last; a folder without it is unfinished."""

    building: str
    """Suffix of the hidden folder in which a replacement is built: "new" for .OUT.packer-new."""

    listed: Callable[[Mapping[str, Any]], Iterable[str]]
    """Function that returns the names of the output's other files, given the content of the record."""

    in_place: bool = False
    """Whether a new output is built in its final folder, where users see it unfinished."""

    def is_complete(self, folder: AnyPath) -> bool:
        """Whether a folder has the record."""
        return (folder / self.record).is_file()

    def listed_in(self, folder: AnyPath) -> set[str] | None:
        """Return the names of the files that the record lists. Returns None if it is damaged or not by packer."""
        try:
            return set(self.listed(json.loads((folder / self.record).read_bytes())))
        except (OSError, *UNREADABLE):
            return None

    def own_files(self, folder: Path) -> set[str]:
        """Return the names of files that packer wrote: from the record, or by pattern if it cannot be read.

        A dataset card that was edited since belongs to the user.
        """
        named = self.listed_in(folder)
        if named is None:
            named = {name for name in os.listdir(folder) if _WRITTEN_HERE.fullmatch(name)}  # noqa: PTH208 (names)
        elif CARD in named:
            digest = json.loads((folder / self.record).read_bytes())["small_files"][CARD]
            named -= set() if matches(folder / CARD, digest) else {CARD}
        return named | {self.record, WORK}


PACKED = OutputKind(name="a packed dataset", record=MANIFEST, building="new", listed=names_listed, in_place=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """An unfinished output that this process has claimed. Can be pickled."""

    out: AnyPath
    """Path of the finished output."""

    store: Store
    """Where it is built: in `out` itself, or in a hidden folder next to it."""

    kind: OutputKind
    is_shared: bool = False
    """Whether other processes may write to the output; files of unknown processes are then kept."""

    request: bytes | None = None
    """Content of the request; None for an output that cannot be resumed."""

    @property
    def building(self) -> Path:
        """Local folder in which it is built."""
        assert isinstance(self.store.root, Path)
        return self.store.root

    @property
    def work(self) -> Path:
        """Local folder that is removed when the output is complete."""
        return self.building / WORK

    @property
    def own(self) -> str:
        """Name of the folder that belongs only to this request."""
        return WORK if self.request is None else f"{WORK}/{xxhash.xxh3_64_hexdigest(self.request)}"

    @property
    def spill(self) -> AnyPath:
        """Folder of decoded sources."""
        return self.store.root / self.own / "spill"

    @property
    def checkpoints(self) -> Checkpoints:
        """Checkpoints of finished tasks."""
        return Checkpoints(store=self.store, folder=f"{self.own}/checkpoints", is_shared=self.is_shared)

    def check_disk(self, rows: int, shard_size: int, workers: int) -> None:
        """Raise a PackerError if the rows still to be written do not fit on the disk.

        rows: bytes of all rows. workers: number of shards made at a time. A shard for object storage is first written
        to a temporary file.
        """
        if self.store.is_remote:
            needed, folder = min(rows, workers * shard_size), temporary_folder()
            place, other = str(folder.parent), "choose a TMPDIR with more"
        else:
            needed, folder = rows - sum(self.shards().values()), self.work
            place, other = str(self.out), "choose an --output with more"
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise PackerError(
                f"{place}: the rows to be written need {byte_size(needed)}, {byte_size(free)} are free: free some "
                f"space and repeat the same command, or {other}"
            )

    def is_complete(self) -> bool:
        """Whether the record is written."""
        return self.kind.is_complete(self.store.root)

    def begun(self) -> bytes | None:
        """Return the content of the request that began the output. Returns None if there is none."""
        with contextlib.suppress(FileNotFoundError):
            return bytes(self.store.get(f"{WORK}/{REQUEST}"))
        return None

    def check_claim(self) -> None:
        """Raise a PackerError if a local folder was removed, or begun again by another process."""
        if isinstance(self.store, Folder):
            self.store.check_claim()

    def watched(self, progress: Progress) -> Progress:
        """Return a callback that also raises a PackerError as soon as a local folder belongs to another process."""

        def tell(stage: str, done: int, total: int) -> None:
            self.check_claim()
            progress(stage, done, total)

        return tell

    def check_request(self) -> None:
        """Raise a PackerError if another command has begun or finished an output in object storage.

        In a local folder, `Claim` is checked whenever a file is put in place.
        """
        if self.store.is_remote and self.begun() != self.request:
            raise PackerError(
                f"{self.out} was finished, removed or started again by another packer: "
                f"repeat the command, or choose another --output"
            )

    def commit(self, task: int, written: Mapping[Path, ShardEntry]) -> None:
        """Put written files, with their entries, in place: first the entries. For errors see `check_request`."""
        self.check_request()
        facts = {"shards": [entry.to_dict() for entry in written.values()]}
        self.checkpoints.save(f"committed-{task}", Checkpoint(facts=facts))
        self.store.put_files({entry.file: path for path, entry in written.items()})

    def committed(self, names: Mapping[int, Sequence[str]]) -> dict[int, list[ShardEntry]]:
        """Return the entries of tasks whose shards are all in place with the right sizes. names: files of each task."""
        sizes = self.store.sizes(among=[name for each in names.values() for name in each])
        in_place = [task for task, each in names.items() if sizes.keys() >= {*each}]
        saved = self.checkpoints.facts_of("committed", in_place)
        entries = {task: [*map(ShardEntry.from_dict, facts["shards"])] for task, facts in saved.items()}
        expected = {task: [(name, sizes[name]) for name in names[task]] for task in entries}
        return {task: each for task, each in entries.items() if [(e.file, e.bytes) for e in each] == expected[task]}

    def is_intact(self, entry: ShardEntry) -> bool:
        """Whether a shard in place matches its hash. In object storage, the store itself checks content."""
        return self.store.is_remote or hash_file(self.store.root / entry.file) == entry.xxh3_128

    def finish(self, record: bytes, files: Mapping[str, bytes]) -> bool:
        """Write small files, then the record, which completes the output.

        Returns whether this process wrote the record. Raises a PackerError if another command has begun or finished the
        output.
        """
        self.check_request()
        for name, content in files.items():
            if self.store.is_remote and self.store.put_if_absent(name, content):
                continue
            self.check_request()  # again, because another command may have written the file
            self.store.put(name, content)
        if self.is_shared:
            return self.store.put_if_absent(self.kind.record, record)
        self.store.put(self.kind.record, record)
        return True

    def shards(self) -> dict[str, int]:
        """Return the bytes of the shards in place, by name."""
        return {name: size for name, size in self.store.sizes().items() if _SHARD.fullmatch(name)}

    def remove_shards(self) -> None:
        """Remove all shards in place, and the files that describe them."""
        for name in (*self.shards(), REJECTED):
            self.store.delete(name)

    def forget_plan(self) -> None:
        """Remove shards and checkpoints, and then the identity of the source, because it decides what is resumed."""
        self.remove_shards()
        self.store.delete_all(self.checkpoints.folder, keep=["source"])
        self.store.delete(f"{self.checkpoints.folder}/source")

    def clear(self) -> None:
        """Remove everything except the lock.

        In a folder, the request is removed first, so that a partly removed output is never resumed. In object storage,
        it is removed last, so that no other command begins before the removal is finished.
        """
        request = f"{WORK}/{REQUEST}"
        if not self.store.is_remote:
            self.store.delete(request)
        if self.store.root == self.out:
            self.remove_shards()
        else:
            self.store.delete_all("", keep=[WORK])
        self.store.delete_all(WORK, keep=[LOCK, REQUEST])
        self.store.delete(request)

    def leave(self) -> None:
        """Remove the work folder, and the folder that contains it if that is then empty."""
        shutil.rmtree(self.work, ignore_errors=True)
        with contextlib.suppress(OSError):  # users may have files in it
            self.building.rmdir()


def resumes(content: bytes | None, request: Request, output: Output, run: RunOptions) -> bool:
    """Whether an unfinished output was begun with an equal request. content: result of `Output.begun`.

    Unless `run.overwrite` is true, raises a PackerError if `content` is damaged or another request.
    """
    afresh = "start afresh with --overwrite" if run.ranks is None else "remove it to start afresh"
    if content is None:
        return False
    try:
        begun = Request.from_dict(json.loads(content))
    except UNREADABLE as error:
        if run.overwrite:
            return False
        raise PackerError(
            f"{output.store.root / WORK / REQUEST} is damaged, so the unfinished output cannot be resumed: {afresh}"
        ) from error
    if begun != request and not run.overwrite:
        raise PackerError(
            f"{output.out} is an unfinished pack {difference(begun, request)}: "
            f"repeat that command to finish it, or {afresh}"
        )
    return begun == request

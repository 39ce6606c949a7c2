"""Checkpoints, which store the results of finished tasks for later tasks: a few facts and arrays in one file.

A checkpoint is a line of JSON (the facts, and the name, dtype, length and offset of each array), followed by the bytes
of the arrays, aligned to 64 bytes. Reading a checkpoint maps its arrays into memory.
"""

from __future__ import annotations

import contextlib
import json
import mmap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.engines.engine import Engine, run_once
from packer.errors import UNREADABLE
from packer.progress import Progress
from packer.stores.store import Store

_ALIGNED = 64  # bytes
_HEAD = 16 << 10  # bytes of a large checkpoint that are read to get its facts


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """Result of a task: values that JSON can represent, and one-dimensional arrays by name."""

    facts: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the content of the checkpoint's file."""
        described, parts, place = [], [], 0
        for name, array in self.arrays.items():
            content = np.ascontiguousarray(array).tobytes()
            content += bytes(-len(content) % _ALIGNED)
            dtype = array.dtype.descr if array.dtype.names else array.dtype.str
            described.append({"name": name, "dtype": dtype, "count": len(array), "place": place})
            parts.append(content)
            place += len(content)
        body = b"".join(parts)
        head = {"facts": dict(self.facts), "arrays": described, "bytes": place}
        line = json.dumps({**head, "xxh3_64": _digest(head, body)}).encode()
        return line + b" " * (-(len(line) + 1) % _ALIGNED) + b"\n" + body


def _digest(head: dict[str, Any], body: bytes | memoryview) -> str:
    """Return the hexadecimal hash of a checkpoint."""
    hashed = xxhash.xxh3_64(json.dumps(head, sort_keys=True).encode())
    hashed.update(body)
    return hashed.hexdigest()


def checkpoint_of(content: bytes | mmap.mmap) -> Checkpoint | None:
    """Parse the content of a checkpoint's file. Returns None if it is damaged."""
    end = content.find(b"\n") + 1
    body = np.frombuffer(content, np.uint8, offset=end) if len(content) > end else np.zeros(0, np.uint8)
    try:
        head = json.loads(content[:end])
        digest = head.pop("xxh3_64")
        if len(body) != head["bytes"] or _digest(head, body.data) != digest:
            return None
        arrays = {}
        for one in head["arrays"]:
            dtype = np.dtype([tuple(each) for each in one["dtype"]] if isinstance(one["dtype"], list) else one["dtype"])
            part = body[one["place"] : one["place"] + one["count"] * dtype.itemsize]
            arrays[one["name"]] = part.view(dtype)
        return Checkpoint(facts=head["facts"], arrays=arrays)
    except UNREADABLE:
        return None


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Checkpoints by name: in the store of an unfinished dataset, or in memory for a plan that writes no files.

    In a store, the checkpoint "STAGE-NUMBER" is the file STAGE/NUMBER.
    """

    store: Store | None = None
    folder: str = ""
    """Name of their folder in the store."""

    is_shared: bool = False
    """Whether other processes also store checkpoints."""

    _held: dict[str, Checkpoint] = field(default_factory=dict, compare=False, repr=False)

    def load(self, name: str) -> Checkpoint | None:
        """Return a checkpoint. Returns None if it is missing or damaged, so that its task must run again."""
        if self.store is None:
            return self._held.get(name)
        try:
            return checkpoint_of(self.store.get(self._file(name)))
        except FileNotFoundError:
            return None

    def read(self, name: str) -> Checkpoint:
        """Return the checkpoint of a task that has run."""
        checkpoint = self.load(name)
        if checkpoint is None:  # another process has just completed the output and removed the checkpoints
            raise FileNotFoundError(name)
        return checkpoint

    def facts_of(self, stage: str, numbers: Sequence[int]) -> dict[int, Mapping[str, Any]]:
        """Return the facts of the existing checkpoints "STAGE-NUMBER", by number. Lists their folder once."""
        names = {str(number): 0 for number in numbers}
        sizes = names if self.store is None else self.store.sizes(f"{self.folder}/{stage}", among=names)
        each = map if self.store is None else self.store.each
        facts = each(lambda name: self._facts(f"{stage}-{name}", sizes[name]), list(sizes))
        return {int(name): each for name, each in zip(sizes, facts, strict=True) if each is not None}

    def _facts(self, name: str, size: int) -> Mapping[str, Any] | None:
        """Return the facts of a checkpoint. Reads only its head if it is large and in object storage."""
        if self.store is not None and self.store.is_remote and size > _HEAD:
            with contextlib.suppress(FileNotFoundError, *UNREADABLE):
                line, _, _ = bytes(self.store.get(self._file(name), _HEAD)).partition(b"\n")
                facts: Mapping[str, Any] = json.loads(line)["facts"]
                return facts
        checkpoint = self.load(name)
        return None if checkpoint is None else checkpoint.facts

    def save(self, name: str, checkpoint: Checkpoint, *, lasting: bool = False) -> None:
        """Store a checkpoint, completely or not at all.

        Use `lasting` for a checkpoint that cannot be reproduced exactly: the checkpoint is synced, unless another
        process has stored it in the meantime. Other checkpoints are made again if a crash of the system damages them.
        """
        if self.store is None:
            self._held[name] = checkpoint
            return
        file, content = self._file(name), checkpoint.to_bytes()
        if not lasting or not self.is_shared:
            self.store.put(file, content, lasting=lasting)
        elif not self.store.put_if_absent(file, content) and self.load(name) is None:  # damaged
            self.store.delete(file)
            self.store.put_if_absent(file, content)

    def _file(self, name: str) -> str:
        stage, _, number = name.rpartition("-")
        return f"{self.folder}/{stage}/{number}" if stage else f"{self.folder}/{number}"


def _run_saved(
    checkpoints: Checkpoints, stage: str, task: Callable[[int], Checkpoint], number: int
) -> tuple[int, Mapping[str, Any]]:
    """Run a task and store its checkpoint. Returns the number and the facts of the stored checkpoint."""
    name = f"{stage}-{number}"
    checkpoints.save(name, task(number), lasting=True)
    return number, checkpoints.read(name).facts


def make_checkpoint(
    checkpoints: Checkpoints, name: str, make: Callable[[], Checkpoint], engine: Engine, *, lasting: bool = False
) -> Checkpoint:
    """Return the checkpoint of a stage with a single task. If it does not exist, one process calls `make`."""
    checkpoint: Checkpoint | None = None

    def is_made() -> bool:
        nonlocal checkpoint
        checkpoint = checkpoint or checkpoints.load(name)
        return checkpoint is not None

    run_once(engine, lambda: checkpoints.save(name, make(), lasting=lasting), is_made)
    return checkpoint or checkpoints.read(name)


def run_stage(
    checkpoints: Checkpoints,
    stage: str,
    count: int,
    task: Callable[[int], Checkpoint],
    *,
    engine: Engine,
    progress: Progress,
) -> Mapping[int, Mapping[str, Any]]:
    """Run the tasks of a stage that have no checkpoint yet. Returns the facts of all tasks by number.

    If several processes run a task, the first to store its checkpoint decides the result. Progress is reported as
    "plan", counted in tasks.
    """
    saved = partial(_run_saved, checkpoints, stage, task)
    found: dict[int, Mapping[str, Any]] = {}

    def done(asked: Sequence[int]) -> Collection[int]:
        found.update(checkpoints.facts_of(stage, [number for number in asked if number not in found]))
        return found.keys()

    progress("plan", 0, count)
    for number, facts in engine.run_missing(saved, range(count), done):
        found[number] = facts
        progress("plan", len(found), count)
    return found

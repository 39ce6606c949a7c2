"""Write shards in a process of their own, for processes that were forked.

The threads of obstore do not survive a fork: in a forked process, as DataLoader makes them for its workers, a request
would wait for ever. The first shard that is missing in the cache starts the process; it ends with the forked one.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from packer.errors import PackerError
from packer.loader.cache.shard_providers import ShardProvider
from packer.shards.manifest_fields import ShardEntry

_COMMAND = "from packer.loader.cache.fetch_process import main; main()"


def write_in_subprocess(provider: ShardProvider, entry: ShardEntry, to: Path) -> None:
    """Write a shard as `ShardProvider.write` does.

    Raises:
        PackerError, OSError: as there, or the process has ended.
    """
    global _process
    with _starting:
        process = _process
        if process is None or not process.is_usable:
            process = _process = _FetchProcess()
    process.write(provider, entry, to)


class _FetchProcess:
    """The process that writes shards for this one, one after the other."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._sent: list[ShardProvider] = []
        self._asking = threading.Lock()

    @property
    def is_usable(self) -> bool:
        """Whether it is a process of this one, and runs."""
        return self._pid == os.getpid() and self._process.poll() is None

    def write(self, provider: ShardProvider, entry: ShardEntry, to: Path) -> None:
        with self._asking:
            number = next((number for number, sent in enumerate(self._sent) if sent is provider), len(self._sent))
            is_new = number == len(self._sent)
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            try:
                pickle.dump((number, provider if is_new else None, entry, to), self._process.stdin)
                self._process.stdin.flush()
                failure = pickle.load(self._process.stdout)
            except (OSError, EOFError, pickle.UnpicklingError):
                raise PackerError(f"{provider.folder / entry.file}: {self._end()}") from None
            if is_new:
                self._sent.append(provider)
        if failure is not None:
            raise failure

    def _end(self) -> str:
        """Wait until the process has ended; return how it did."""
        status = self._process.wait()
        self._errors.seek(0)
        text = " ".join(self._errors.read().decode(errors="replace").split())[-300:]
        return f"the process that fetches it ended with {status} ({text})"


_process: _FetchProcess | None = None
_starting = threading.Lock()


def main() -> None:
    """Answer the requests on the standard input with None or an error, until it ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed is no answer
    providers: list[ShardProvider] = []
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        while True:
            try:
                number, provider, entry, to = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            if provider is not None:
                providers[number:] = [provider]
            pickle.dump(_failure(providers[number], entry, to), answers)
            answers.flush()


def _failure(provider: ShardProvider, entry: ShardEntry, to: Path) -> Any:
    """Write a shard; return the error if that fails, in a form that can be pickled."""
    try:
        provider.write(entry, to)
    except PackerError as error:
        return PackerError(str(error))
    except OSError as error:
        return OSError(error.errno, error.strerror or str(error), error.filename)
    return None

"""Tasks in processes of this machine, for work that holds the interpreter lock or cannot run after a fork.

The processes are fresh interpreters, not forks, because this process has threads. Unlike processes of
`multiprocessing`, they do not import the main module, because that may be a script that packs without checking its
`__name__`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from typing import Any, ClassVar

from packer.engines.engine import Call, Engine, Report, Result, run_tasks
from packer.errors import PackerError
from packer.signals import CURRENT_TASK, raise_if_interrupted

# Python puts the current folder, which may have modules of the same names, before the path of imports.
_SERVE = "import sys; sys.path[:] = sys.argv[2:]; from packer.engines.processes import serve; serve(int(sys.argv[1]))"
_POLL = 0.05  # seconds after which a waiting thread checks for a reason to stop
_REPORTED_EVERY = 1.0  # seconds between reports of a task


@dataclass(frozen=True, kw_only=True, slots=True)
class Processes(Engine):
    """An engine that runs each task in one of `workers` processes: this one, and others, started for each stage."""

    is_local: ClassVar[bool] = False

    threads: int = 1
    """Number of threads for each process."""

    def run(
        self, task: Call[Result], numbers: Sequence[int], report: Report = None, *, local: Call[Result] | None = None
    ) -> Iterator[Result]:
        """Run tasks in processes, and `local` in this one, which begins while the others start.

        Raises the errors of tasks unchanged, and a PackerError if a process was killed.
        """
        content = pickle.dumps(task)
        calls: list[Call[Any]] = [] if local is None else [local]
        # The tokenizers library would start a thread for each core in every process.
        threads = {"RAYON_NUM_THREADS": str(self.threads)}
        started = [TaskProcess(content, threads) for _ in range(min(self.workers, len(numbers)) - len(calls))]
        calls += [process.call for process in started]
        idle: SimpleQueue[Call[Any]] = SimpleQueue()
        for call in calls:
            idle.put(call)

        def run(number: int) -> Any:
            call = idle.get()
            try:
                return call(number)
            except ProcessEndedError as error:
                remedy = "if memory is short, set fewer --workers, and " if str(error) == "SIGKILL" else ""
                raise PackerError(
                    f"a process that tokenizes ended ({error}): {remedy}repeat the same command: it resumes where it "
                    "stopped"
                ) from None
            finally:
                idle.put(call)

        try:
            yield from run_tasks(run, numbers, len(calls), report)
        finally:
            for process in started:
                process.end()


class ProcessEndedError(Exception):
    """Raised if a process ends before it answers. The message is the signal that killed it, or its exit code."""


class TaskProcess:
    """A process that runs a pickled task, and ends when this process closes its end of the pipe.

    It has the environment variables and the path of imports of this process. `defaults` sets variables that this one
    does not have.
    """

    def __init__(self, content: bytes, defaults: Mapping[str, str] | None = None) -> None:
        self._pipe, theirs = Pipe()
        variables = {**(defaults or {}), **os.environ}
        with theirs:
            fd = theirs.fileno()
            words = [sys.executable, "-c", _SERVE, str(fd), *sys.path]
            # In a separate session, so that Ctrl-C in the terminal does not end the process.
            self._process = subprocess.Popen(
                words, pass_fds=[fd], env=variables, stdin=subprocess.DEVNULL, start_new_session=True
            )
        self._content: bytes | None = content

    def call(self, argument: object) -> Any:
        """Run the task for an argument and pass on its reports. Returns its result or raises its error."""
        try:
            if self._content is not None:
                self._pipe.send_bytes(self._content)
                self._content = None
            self._pipe.send(argument)
            while True:
                while not self._pipe.poll(_POLL):
                    raise_if_interrupted()
                reported, result, error = self._pipe.recv()
                if reported is None:
                    break
                CURRENT_TASK.report(*reported)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            code = self._process.wait()
            raise ProcessEndedError(signal.Signals(-code).name if code < 0 else f"code {code}") from None
        if error is not None:
            raise error
        return result

    def end(self) -> None:
        """End the process, even in the middle of a task."""
        self._pipe.close()
        self._process.wait()


def serve(fd: int) -> None:
    """Run a task in a process that `TaskProcess` started, until the other end of its pipe is closed."""
    pipe = Connection(fd)
    received: SimpleQueue[Any] = SimpleQueue()

    def receive() -> None:
        try:
            received.put(pipe.recv_bytes())
            while True:
                received.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(1)

    due = 0.0

    def report(*amounts: int) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _REPORTED_EVERY
            with contextlib.suppress(OSError):  # the other end was closed, so `receive` ends this process
                pipe.send((amounts, None, None))

    threading.Thread(target=receive, daemon=True).start()
    task: Callable[[Any], object] = pickle.loads(received.get())
    CURRENT_TASK.report = report
    while True:
        argument, due = received.get(), 0.0
        try:
            pipe.send((None, task(argument), None))
        except Exception as error:
            pipe.send((None, None, error))

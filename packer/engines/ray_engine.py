"""Tasks on any node of a Ray cluster. All nodes must see the same storage."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from packer.engines.engine import Call, Engine, Report, Result
from packer.errors import PackerError, extra, first_line
from packer.signals import raise_if_interrupted

RETRIES = 3
"""Number of times that Ray repeats a task whose worker or node died. A task that raises an error is not repeated."""

_ANSWERS_WITHIN = 10.0
"""Seconds within which a cluster must answer."""

_AHEAD = 2
"""Number of tasks per core of the cluster in flight."""

_LOOK = 0.5
"""Seconds between checks for a signal to end the command."""

_HEAD_PATIENCE, _NODE_PATIENCE = 30.0, 5.0
"""Seconds without an answer after which the cluster's head, and the node of this process, are considered lost.

Ray itself would end this process after 60 and about 15 seconds, with its own messages. A head may be restarted within
this time.
"""


@contextlib.contextmanager
def ray_engine(address: str | None, workers: int) -> Iterator[RayEngine]:
    """Yield an engine that is connected to a cluster.

    address: address of a cluster; "auto" for the cluster that this machine belongs to; None to start a cluster of
    `workers` cores on this machine, which is stopped at the end. Raises a PackerError if Ray is not installed, or if no
    cluster answers at the address.
    """
    try:
        import ray
    except ImportError:
        raise PackerError(f"--engine ray needs Ray: {extra('ray')}") from None
    begun_here = not ray.is_initialized()
    if begun_here:
        started = {} if address is not None else {"num_cpus": workers, "include_dashboard": False}
        handler = signal.getsignal(signal.SIGTERM)  # `ray.init` replaces it
        try:
            _probe(address)
            ray.init(address=address, log_to_driver=False, logging_level="ERROR", **started)
        except Exception as error:  # Ray raises many types; the first line of each describes the fault
            if address is None:
                raise PackerError(f"Ray does not start here ({first_line(error)}): `ray start` says more") from error
            raise PackerError(f"--engine ray:{address}: no cluster is reached ({first_line(error)})") from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)
    try:
        yield RayEngine(workers=workers)
    finally:
        if begun_here:
            ray.shutdown()


@dataclass(frozen=True, kw_only=True, slots=True)
class RayEngine(Engine):
    """An engine that runs each task as a Ray task. Only this process claims the output and collects the results."""

    is_local: ClassVar[bool] = False

    def run(
        self, task: Call[Result], numbers: Sequence[int], report: Report = None, *, local: Call[Result] | None = None
    ) -> Iterator[Result]:
        """Run tasks on the cluster. Raises the errors of tasks unchanged, and a PackerError if Ray gave up a task."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        remote = ray.remote(max_retries=RETRIES, num_cpus=1)(_run)
        stored, folder = ray.put(task), os.getcwd()  # noqa: PTH109 (for `chdir`)
        most = max(1, int(_AHEAD * ray.cluster_resources().get("CPU", 1)))
        running: dict[Any, int] = {}
        coming, cluster = iter(numbers), _Cluster()
        try:
            while True:
                for number in coming:
                    running[remote.remote(stored, number, folder)] = number
                    if len(running) >= most:
                        break
                if not running:
                    return
                ended: list[Any] = []
                while not ended:
                    raise_if_interrupted()
                    ended, _ = ray.wait(list(running), num_returns=1, timeout=_LOOK)
                    cluster.check()
                (done,) = ended
                number = running.pop(done)
                try:
                    result = ray.get(done)
                except RayTaskError as error:
                    raise error.cause from None
                except RayError as error:
                    reason = str(error).strip().splitlines()[0]
                    raise PackerError(
                        f"Ray gave up task {number} after {RETRIES} retries ({reason}): repeat the same command"
                    ) from error
                yield result
        finally:
            for left in running:
                ray.cancel(left)


class _Cluster:
    """The head of a cluster and the node of this process, which must both answer."""

    def __init__(self) -> None:
        import ray

        context = ray.get_runtime_context()
        own = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
        node = f"{own['NodeManagerAddress']}:{own['NodeManagerPort']}"
        self._patience = {context.gcs_address: _HEAD_PATIENCE, node: _NODE_PATIENCE}
        self._answered: dict[str, float] = {}  # time of the last answer; through a Ray client, neither may ever answer

    def check(self) -> None:
        """Raise a PackerError if one of them has stopped answering. Call it regularly."""
        for address, patience in self._patience.items():
            try:
                _connect(address)
                self._answered[address] = time.monotonic()
            except OSError:
                if time.monotonic() - self._answered.get(address, float("inf")) > patience:
                    raise PackerError(
                        f"Ray's cluster does not answer at {address} any more: start it again, and repeat the command"
                    ) from None


def _connect(address: str) -> None:
    """Connect to HOST:PORT. Raises an error immediately if nothing answers there."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("it is HOST:PORT, or auto")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWERS_WITHIN).close()


def _probe(address: str | None) -> None:
    """Connect to a cluster at HOST:PORT, or fail immediately. Ray itself would try for many minutes."""
    if address in (None, "auto", "local"):
        return
    _connect(str(address).rpartition("://")[2])


def _run(task: Callable[[int], Result], number: int, folder: str) -> Result:
    """Run a task in a worker, in the driver's folder, so that relative paths have the same meaning."""
    os.chdir(folder)
    return task(number)

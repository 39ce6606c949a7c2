"""Requests to object stores: repeated if they fail, with one line for an error, and several at the same time."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import lru_cache
from typing import TypeVar

from packer.errors import PackerError

_OPENED_TOGETHER = 16  # files, each of which may make several requests at the same time

AT_ONCE = 32
"""Requests that a process has under way at the same time; a store answers each after 10 to 100 ms."""

PART = 8 << 20
"""Bytes of a request that reads or writes part of a large object."""

TIMEOUT = timedelta(seconds=60)
"""Time for a request with its body, which is at most 16 MB."""

_TRIES = 4
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0  # seconds between tries
_SILENT_TRIES = 2  # that end without an answer
_LEFT_ALONE = 10.0  # seconds in which a silent store gets no requests, so that a command that fails ends at once

_PREAMBLE = re.compile(r"^Generic \w+ error: Error performing .*? retry_timeout: \S+\s+- ")
_NO_REASON = re.compile(r"status code: (4\d\d [A-Za-z ]+):?$")  # an answer to HEAD, which has no body

Item = TypeVar("Item")
Result = TypeVar("Result")


class StoreError(OSError):
    """A store cannot be reached, or answers with an error, also after repeated requests."""


class ChangedError(StoreError):
    """An object has another version than when it was opened."""


class CutShortError(Exception):
    """An answer has fewer bytes than were asked for."""


def not_installed(name: str) -> PackerError:
    """Return the error for an address that cannot be used without obstore."""
    return PackerError(f'{name} needs the package obstore: pip install "packer-llm[store]"')


def requested(name: str, request: Callable[[], Result]) -> Result:
    """Make a request to an address; repeat it after a pause if the store or the network fails.

    Raises a FileNotFoundError, a FileExistsError if the object was not to be replaced, a ChangedError if it is not the
    version asked for, a PermissionError for credentials that are missing, wrong or not sufficient, and a StoreError for
    anything else, after several tries. If the store does not answer, it is raised after 2 * TIMEOUT, and at once for
    the next requests.
    """
    try:
        from obstore import exceptions
    except ImportError:
        raise not_installed(name) from None
    store, begun, pause, silent = name.split("/")[2], time.monotonic(), _FIRST_PAUSE, 0
    if begun < _left_alone_until.get(store, begun):
        raise StoreError(f"{name}: the store cannot be used ({_no_answer()}, tried {_SILENT_TRIES} times)")
    for number in range(1, _TRIES + 1):
        try:
            result = request()
            _answered[store] = time.monotonic()
            return result
        except FileNotFoundError as error:
            raise FileNotFoundError(2, "no such object", name) from error
        except exceptions.AlreadyExistsError as error:
            raise FileExistsError(17, "the object exists", name) from error
        except exceptions.PreconditionError as error:
            raise ChangedError(
                f"{name}: the object was changed while it was read; repeat the command when nothing writes to it"
            ) from error
        except (PermissionError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise PermissionError(13, f"access denied ({reason_of(error)})", name) from error
        except (exceptions.BaseError, CutShortError, OSError) as error:
            if "NoSuchBucket" in str(error):
                raise StoreError(f"{name}: there is no such bucket") from error
            if "status: 403" in str(error):  # of a list, which obstore does not tell from other errors
                raise PermissionError(13, f"access denied ({reason_of(error)})", name) from error
            silent += _is_silent(error)
            if silent == _SILENT_TRIES and _answered.get(store, begun) <= begun:
                _left_alone_until[store] = time.monotonic() + _LEFT_ALONE
            is_last = number == _TRIES or silent == _SILENT_TRIES
            if is_last or "ExpiredToken" in str(error) or _is_final(error):
                tried = f", tried {number} times" if number > 1 else ""
                raise StoreError(f"{name}: the store cannot be used ({reason_of(error)}{tried})") from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
    raise AssertionError


_answered: dict[str, float] = {}  # when a request last succeeded, by bucket
_left_alone_until: dict[str, float] = {}


def _is_silent(error: BaseException) -> bool:
    """Whether no answer came in time."""
    return "kind: Timeout" in str(error) or "timed out" in str(error)


def _no_answer() -> str:
    return f"no answer within {TIMEOUT.seconds} seconds"


def _is_final(error: BaseException) -> bool:
    """Whether the same request would fail in the same way: a wrong address, or credentials that cannot be found."""
    text = str(error)
    return any(words in text for words in ("dns error", "InvalidAccessKeyId", "status: 400"))


def reason_of(error: BaseException) -> str:
    """Return the innermost reason of an error in one short line."""
    if _is_silent(error):
        return _no_answer()
    lines = [line.strip() for line in str(error).split("Debug source")[0].splitlines() if line.strip()]
    text = _PREAMBLE.sub("", " ".join(lines)) or type(error).__name__
    code, message = (re.search(f"<{name}>([^<]*)", text) for name in ("Code", "Message"))
    if code is not None:
        return f"{code[1]}: {message[1]}" if message is not None else code[1]
    status = _NO_REASON.search(text)
    if status is not None:
        return f"{status[1]}: have the credentials expired?" if status[1].startswith("400") else status[1]
    return text if len(text) <= 300 else f"{text[:297]}..."


def in_parallel(task: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Call a function that waits for a store for each item, several at a time; return the results in order."""
    if len(items) <= 1:
        return [task(item) for item in items]
    futures = [submitted(task, item) for item in items]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()


def opened_in_parallel(task: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Do what `in_parallel` does, for a function that itself calls `in_parallel`: it has threads of its own."""
    if len(items) <= 1:
        return [task(item) for item in items]
    with ThreadPoolExecutor(min(_OPENED_TOGETHER, len(items))) as threads:
        return list(threads.map(task, items))


def submitted(task: Callable[..., Result], *arguments: object) -> Future[Result]:
    """Begin a call that waits for a store, in a thread."""
    return _threads(os.getpid()).submit(task, *arguments)


@lru_cache(maxsize=1)
def _threads(pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(AT_ONCE, thread_name_prefix="store")

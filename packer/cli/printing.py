"""Printing: results without control characters from files, and errors as one line on stderr.

Exit codes:

0    done
1    something the command needs is faulty: files, data, the network, the machine
2    the command line is wrong: names, values or combinations of options
3    a check failed (`verify`, `check`)
130  interrupted (SIGINT); 143: terminated (SIGTERM)
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from packer import signals
from packer.errors import OptionError, PackerError, StoreError, shortage_behind
from packer.plain_text import visible, with_hub_ids
from packer.signals import Interrupted


def echo(text: str, *, err: bool = False) -> None:
    """Print a text on stdout, or on stderr."""
    click.echo(visible(with_hub_ids(text)), err=err)


def echo_painted(text: Callable[[Callable[..., str]], str]) -> None:
    """Print a text in color, even if stdout is not a terminal. `text` gets a function that styles its parts."""
    click.echo(text(lambda part, **style: click.style(visible(part), **style)), color=True)


def echo_json(content: object, default: Callable[[Any], Any] | None = None) -> None:
    """Print JSON with all control characters escaped."""
    click.echo(json.dumps(content, indent=1, default=default).replace("\x7f", "\\u007f"))


NOT_RIGHT = 3  # exit code of a check that found something wrong


def echo_error_as_json(message: str, code: int) -> None:
    """Print the JSON that `--json` prints for an error."""
    echo_json({"error": message, "exit_code": code})


@contextmanager
def one_line_errors(*, debug: bool, as_json: bool = False, resumes: bool = False) -> Iterator[None]:
    """Print errors that a user can fix in one line, and exit.

    as_json: print the error as JSON on stdout as well. debug: raise the error, so that Python prints its traceback.
    resumes: add to the message that repeating the command resumes it.
    """
    again = "; the same command resumes where it stopped" if resumes else ""
    try:
        with explained_bus_errors(), signals.noted():
            yield
    except BaseException as error:  # panics of Rust extensions are not an Exception
        if isinstance(error, PackerError):
            error.args = (error.in_command,)
        code, message = _code_and_message(error, again)
        if debug or message is None:
            raise
    else:
        return
    echo(f"packer: {message}", err=True)
    if as_json:
        echo_error_as_json(message, code)
    sys.exit(code)


def _code_and_message(error: BaseException, again: str) -> tuple[int, str | None]:
    """Return the exit code and the message of an error; None as the message of a bug.

    `again` is appended to the messages of interruptions and of missing space or memory.
    """
    if isinstance(error, PackerError):
        return 2 if isinstance(error, OptionError) else 1, str(error)
    if isinstance(error, (StoreError, PermissionError)):  # the command has not begun its work
        what = f"{error.filename}: {error.strerror}" if error.filename else error
        return 1, f"{what}: repeat the same command when that is fixed"
    if isinstance(error, KeyboardInterrupt):
        number = error.number if isinstance(error, Interrupted) else signal.SIGINT
        return 128 + number, signals.WORDS[signal.Signals(number)] + again  # the usual exit code
    short = shortage_behind(error)
    return 1, None if short is None else short + again


_MAPS = Path("/proc/self/maps")


@contextmanager
def explained_bus_errors() -> Iterator[None]:
    """Print one line and exit with 1 on a bus error, which would otherwise end the process silently."""
    if threading.current_thread() is not threading.main_thread() or not _MAPS.exists():
        yield
        return
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(_explain_and_exit)
    # Subtle: a handler of the signal module would run only later, in the main thread, and the failed access would be
    # repeated forever. This handler runs immediately. That is safe, because the access that raised the signal holds no
    # lock.
    before = libc.signal(signal.SIGBUS, ctypes.cast(handler, ctypes.c_void_p))
    try:
        yield
    finally:
        libc.signal(signal.SIGBUS, before)


def _explain_and_exit(_: int) -> None:
    names = ", ".join(shrunken_files()) or "a memory-mapped file"
    line = f"packer: {names}: cannot be read: truncated while it was read, or its disk failed; restore it and repeat"
    os.write(2, f"{visible(line)}\n".encode())
    os._exit(1)


def shrunken_files() -> list[str]:
    """Return the files that are shorter than the part of them that this process has mapped."""
    found = []
    for line in _MAPS.read_text(errors="surrogateescape").splitlines():
        addresses, access, offset, _, _, *path = line.split(maxsplit=5)
        if not path or not access.startswith("r--") or int(offset, 16):  # a library: data is mapped from byte 0
            continue
        first, last = (int(address, 16) for address in addresses.split("-"))
        try:
            size = os.stat(path[0]).st_size  # noqa: PTH116 (a path is not made of thousands of names)
        except OSError:  # removed: its mapped pages are still readable
            continue
        if last - first - size >= mmap.PAGESIZE:
            found.append(path[0])
    return sorted(set(found))

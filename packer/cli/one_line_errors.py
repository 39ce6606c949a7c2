"""Errors as one line on stderr and an exit code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from packer import signals
from packer.cli.bus_errors import explained_bus_errors
from packer.errors import PackerError
from packer.system_errors import shortage_behind


@contextmanager
def one_line_errors(*, debug: bool, resumes: bool = False) -> Iterator[None]:
    """Print errors that a user can mend as one line and exit.

    The exit code is 1 for a `PackerError` and for a lack of memory or threads, 130 after SIGINT and 143 after SIGTERM.

    Args:
        debug: raise the errors, so that Python prints their traceback.
        resumes: say that the same command continues where it was interrupted.
    """
    code = 1
    try:
        with explained_bus_errors(), signals.raising():
            yield
    except PackerError as error:
        if debug:
            raise
        message = str(error)
    except KeyboardInterrupt as interrupt:
        if debug:
            raise
        number = interrupt.number if isinstance(interrupt, signals.Signalled) else signal.SIGINT
        code = 128 + number  # the exit code that a shell reports for a process ended by a signal
        message = signals.WORDS[signal.Signals(number)]
        if resumes:
            message += "; the same command goes on where it stopped"
    except BaseException as error:  # panics of Rust extensions are not an Exception
        short = shortage_behind(error)
        if debug or short is None:
            raise
        message = f"{short}; the same command goes on where it stopped" if resumes else short
    else:
        return
    click.echo(f"packer: {message}", err=True)
    sys.exit(code)

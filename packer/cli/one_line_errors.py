"""Errors as one line on stderr, and the exit codes.

0    done
1    a fault in the input, the data or the machine
2    wrong usage
3    a check failed (`verify`, `check`)
130  interrupted (SIGINT); 143: terminated (SIGTERM)
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from packer import signals
from packer.cli.bus_errors import explained_bus_errors
from packer.errors import PackerError
from packer.system_errors import shortage_behind

NOT_RIGHT = 3
"""Exit code of a check that has found something wrong."""


@contextmanager
def one_line_errors(*, debug: bool, as_json: bool = False, resumes: bool = False) -> Iterator[None]:
    """Print errors that a user can fix as one line and exit.

    Args:
        debug: raise the errors, so that Python prints their traceback.
        as_json: print {"error": ..., "exit_code": ...} on stdout as well.
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
            message += "; the same command resumes where it stopped"
    except BaseException as error:  # panics of Rust extensions are not an Exception
        short = shortage_behind(error)
        if debug or short is None:
            raise
        message = f"{short}; the same command resumes where it stopped" if resumes else short
    else:
        return
    click.echo(f"packer: {message}", err=True)
    if as_json:
        click.echo(json.dumps({"error": message, "exit_code": code}, indent=1))
    sys.exit(code)

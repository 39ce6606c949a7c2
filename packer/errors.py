"""The errors a user can mend. Imports nothing of this package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager


class PackerError(Exception):
    """A user's mistake or a machine's limit, told in one line: the value, the limit and the remedy.

    The command line prints it without a traceback and exits with 1. A name quoted from a damaged file may hold line
    breaks: they become spaces.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


class OtherSourceError(PackerError):
    """A source lacks what it is asked for, a column or a split.

    Args:
        found: what was looked for, and what there is.
        remedy: which option asks for something else; `verify` has none of them and says something else.
    """

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(f"{found}; {remedy}")
        self.found = found


class SourceError(PackerError):
    """The source's content is at fault, so that repeating the same command cannot help.

    A pack that meets it removes what it had begun to write.
    """


@contextmanager
def python_names() -> Iterator[None]:
    """Let errors call options as Python's functions do: "choose --long truncate" -> "choose long truncate"."""
    try:
        yield
    except PackerError as error:
        error.args = tuple(
            re.sub(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)( FILE\b)?", lambda option: option[1].replace("-", "_"), str(part))
            for part in error.args
        )
        raise

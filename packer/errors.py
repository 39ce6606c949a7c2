"""Errors that a user can fix. Imports nothing of this package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""Exceptions raised by reading damaged JSON."""


class PackerError(Exception):
    """A user's mistake or a machine's limit, described in one line: the value, the limit and the remedy.

    The command line prints it without a traceback and exits with 1, or with 2 for an `OptionError`. Line breaks, as in
    a name quoted from a damaged file, become spaces.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


class OptionError(PackerError):
    """Options that are wrong for any dataset: a value outside its limits, or two that exclude each other.

    The command line exits with 2, as it does for an option that does not exist.
    """


class OtherSourceError(PackerError):
    """A source has no such column or split, or records of another kind.

    Args:
        found: what was looked for, and what the source has.
        remedy: the option that chooses another; `verify`, which has no such option, replaces it.
    """

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(f"{found}; {remedy}")
        self.found = found


class SourceError(PackerError):
    """The content of the source is at fault, so that repeating the same command cannot help.

    The unfinished output is removed.
    """


def extra(name: str) -> str:
    """Return how to install the packages of an extra, for a message."""
    return f'install packer with its extra "{name}", in a checkout by pip install ".[{name}]"'


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextmanager
def python_names() -> Iterator[None]:
    """Name options in errors as in Python: "choose --long truncate" -> "choose long='truncate'"."""
    try:
        yield
    except PackerError as error:
        error.args = tuple(_OPTION.sub(_in_python, str(part)) for part in error.args)
        raise


# a command in quotes, which stays; or an option, with the word behind it where that is its value
_WITH_VALUE = "(?:chat-template|dtype|eos-id|long|on-error|split|split-at|text-column|train-on|untrained)"
_VALUE = r"(?!(?:and|if|is|or|out|with)\b)[a-z0-9][\w:,./-]*\w"
_OPTION = re.compile(rf"`.*?`|(?<![\w-])--(?:({_WITH_VALUE}) ({_VALUE})|([a-z]+(?:-[a-z]+)*)(?: FILE\b)?)")


def _in_python(found: re.Match[str]) -> str:
    with_value, value, name = found.groups()
    if with_value is not None:
        return f"{with_value.replace('-', '_')}={value!r}"
    return name.replace("-", "_") if name is not None else found[0]

"""Errors that a user can fix, as one line with the remedy. Errors of the system are converted to such lines."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from operator import index
from typing import Any

from packer.plain_text import with_hub_ids

UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""Exceptions that reading damaged JSON can raise."""

_NO_MEMORY = (os.strerror(errno.ENOMEM), "failed to map segment")  # the second message occurs when a library is loaded
_NO_THREADS = ("can't start new thread", os.strerror(errno.EAGAIN))
_NETWORK = ("Connect", "Timeout", "gaierror", "OfflineMode")
_NO_FILES = (os.strerror(errno.EMFILE), os.strerror(errno.ENFILE))


class PackerError(Exception):
    """A user's mistake or a machine's limit, described in one line: the value, the limit and the remedy.

    The command line prints it without a traceback and exits with 1, or with 2 for an `OptionError`. Line breaks, which
    names quoted from a damaged file may contain, become spaces. Downloads are named by their ids on the Hub.
    """

    def __init__(self, message: str) -> None:
        super().__init__(with_hub_ids(" ".join(message.splitlines())))
        self.in_command = str(self)
        """The message with options named as on the command line; `str` of an error in Python names them differently."""


class OptionError(PackerError):
    """Options that are wrong for any dataset: a value outside its limits, or two that exclude each other.

    The command line exits with 2, as for an unknown option.
    """


class OtherSourceError(PackerError):
    """The source has no such column or split, or has records of another kind.

    Args:
        found: what packer looked for, and what the source has.
        remedy: the option that selects another column or split. `verify` has no such option, and replaces the remedy.
    """

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(f"{found}; {remedy}")
        self.found = found
        self.remedy = remedy

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments, because errors of tasks come from other processes."""
        return type(self), (self.found, self.remedy), {**vars(self), "args": self.args}


class SourceError(PackerError):
    """The content of the source is at fault, so repeating the command cannot help. The unfinished output is removed."""


class StoreError(OSError):
    """A store cannot be reached, or answers with an error even after repeated requests."""


class NoLocksError(OSError):
    """A file system does not support locks."""


def as_whole(name: str, value: int, least: int | None = None) -> int:
    """Return an argument called `name` as Python's int, which any state format can save.

    Raises PackerError unless it is a whole number, at least `least`.
    """
    try:
        whole = index(value)
    except TypeError:
        raise PackerError(f"{name} is {value!r}: it must be a whole number") from None
    if least is not None and whole < least:
        raise PackerError(f"{name} is {whole}: it must be at least {least}")
    return whole


def extra(name: str) -> str:
    """Return the part of a message that says how to install the packages of an extra."""
    return f'install packer with its extra "{name}", in a checkout by pip install ".[{name}]"'


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextmanager
def python_names() -> Iterator[None]:
    """Name options in errors as in Python."""
    try:
        yield
    except PackerError as error:
        error.args = (in_python(error.in_command),)
        raise


def in_python(text: str) -> str:
    """Name options as in Python: "choose --long truncate" -> "choose long='truncate'"."""
    return _OPTION.sub(_named, text)


# Either a quoted command, which is kept, or an option, with the next word if it is the option's value.
_WITH_VALUE = "(?:chat-template|dtype|eos-id|long|on-error|split|split-at|text-column|train-on|untrained)"
_VALUE = r"(?!(?:and|if|is|or|out|with)\b)[a-z0-9][\w:,./-]*\w"
_OPTION = re.compile(rf"`.*?`|(?<![\w-])--(?:({_WITH_VALUE}) ({_VALUE})|([a-z]+(?:-[a-z]+)*)(?: FILE\b)?)")


def _named(found: re.Match[str]) -> str:
    with_value, value, name = found.groups()
    if with_value is not None:
        return f"{with_value.replace('-', '_')}={value!r}"
    return name.replace("-", "_") if name is not None else found[0]


def shortage(error: BaseException) -> str | None:
    """Describe the shortage and its remedy if an error is due to memory, memory maps, threads or open files.

    Libraries report a shortage in many ways, so both the words of the message and its type are examined:
    `OSError("Memory mapping file failed: Cannot allocate memory")` has no errno. Such an error does not concern the
    data. Returns None for other errors.
    """
    text = " ".join(str(error).split()) or type(error).__name__
    if any(words in text for words in _NO_THREADS):
        return f"no more threads can be started ({text}): choose fewer --workers, or raise ulimit -u or -v"
    if any(words in text for words in _NO_FILES):
        return f"too many files are open ({text}): raise ulimit -n"
    if isinstance(error, MemoryError):
        return f"out of memory ({text}): choose a smaller --max-len or fewer --workers, free some, or raise ulimit -v"
    if any(words in text for words in _NO_MEMORY):
        return f"no more memory can be mapped ({text}): free some, or raise ulimit -v or vm.max_map_count"
    return None


def check_address_space(needed: int, what: str) -> None:
    """Raise a MemoryError if fewer than `needed` bytes of address space are left.

    LLVM and the tokenizers library abort the process if memory runs out. Only a limit set by `ulimit -v` is checked.
    Other threads may allocate memory in the meantime, so `needed` has to be generous.
    """
    import resource  # imported here, because `import packer` imports this module
    from pathlib import Path

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return
    pages = int(Path("/proc/self/statm").read_bytes().split()[0])
    left = limit - pages * resource.getpagesize()
    if left < needed:
        raise MemoryError(f"{left >> 20} MiB of address space left for {what}")


def shortage_behind(error: BaseException) -> str | None:
    """Return the first result of `shortage` for an error and its causes, the nearest first."""
    return next((found for cause in _causes(error) if (found := shortage(cause)) is not None), None)


def hub_is_unreachable(error: BaseException) -> bool:
    """Whether an error or one of its causes means that the Hugging Face Hub did not answer.

    The types of these errors differ between versions of huggingface_hub and its HTTP library, but the words in their
    names are the same.
    """
    return any(
        isinstance(cause, (ConnectionError, TimeoutError)) or any(word in type(cause).__name__ for word in _NETWORK)
        for cause in _causes(error)
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, the nearest first."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


@contextmanager
def system_errors(out: object, *, resumes: bool) -> Iterator[None]:
    """Convert an OSError, or a library's error about missing threads or memory maps, to a PackerError with the remedy.

    The message names `out` if the error names no file. resumes: whether repeating the command resumes the output.
    """
    goes_on = ": it resumes where it stopped" if resumes else ""
    try:
        yield
    except (PackerError, MemoryError):
        raise
    except OSError as error:
        where = error.filename or out
        short = shortage(error)
        if short is not None:
            raise PackerError(f"{where}: {short}, and repeat the same command{goes_on}") from error
        if isinstance(error, StoreError):
            raise PackerError(f"{error}: repeat the same command when that is fixed{goes_on}") from error
        if isinstance(error, PermissionError) and "://" in str(where):
            is_late = "RequestTimeTooSkewed" in str(error.strerror)
            remedy = "set the clock of this machine" if is_late else "check the credentials and what they permit"
            raise PackerError(f"{where}: {error.strerror}: {remedy}, and repeat the same command{goes_on}") from error
        if isinstance(error, NoLocksError):
            raise PackerError(
                f"{where} cannot be locked ({error.strerror}), so two processes might write there at once: mount the "
                "file system with locks (flock for Lustre), or choose a folder on another one"
            ) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = f"free some space and repeat the same command{goes_on}"
        elif error.errno == errno.EFBIG:
            remedy = f"raise ulimit -f, or choose a smaller --shard-size, and repeat the command{goes_on}"
        elif error.errno == errno.ENAMETOOLONG:
            remedy = "choose a shorter name"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP):
            remedy = "make it writable, or choose another folder"
        else:
            remedy = f"repeat the same command when that is fixed{goes_on}"
        raise PackerError(f"{where}: {error.strerror or error}: {remedy}") from error
    except BaseException as error:  # Rust panics are not an Exception
        short = shortage(error)
        if short is None:
            raise
        raise PackerError(f"{out}: {short}, and repeat the same command{goes_on}") from error

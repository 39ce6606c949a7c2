"""What the system refuses while an output is written, in one line."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from packer.errors import PackerError


@contextmanager
def system_errors(out: Path, *, resumes: bool) -> Iterator[None]:
    """Say what the system refused, and what to do.

    Args:
        out: the output, where the system names no file.
        resumes: whether the same command goes on where it stopped.

    Raises:
        PackerError: instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        where = error.filename or out
        goes_on = ": it goes on where it stopped" if resumes else ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = f"free some space and repeat the same command{goes_on}"
        elif error.errno == errno.ENAMETOOLONG:
            remedy = "choose a shorter name with --output"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP):
            remedy = "choose a folder that can be written with --output"
        else:
            remedy = f"repeat the same command when that is mended{goes_on}"
        raise PackerError(f"{where}: {error.strerror or error}: {remedy}") from error

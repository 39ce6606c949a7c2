"""Whether the disk has room for what is going to be written: asked before hours of work, not after."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from packer.errors import PackerError
from packer.options import PackOptions, byte_size
from packer.shards.columns import RowFormat
from packer.sources import Source
from packer.sources.mixture import Mixture
from packer.workspace import Workspace

_WORTH_A_LINE = 10**6  # bytes
_LEAST = 0.8  # of what a sample of the source says, what it will surely take

log = logging.getLogger(__name__)


def check_decoding(claimed: Workspace, source: Source | Mixture, options: PackOptions) -> None:
    """Log what decoding needs on disk, and what is free, where it is worth a line and not all there from before.

    Raises:
        PackerError: the decoded source, or that and rows for all of its tokens, cannot fit.
    """
    spill = source.spill_size(claimed.spill)
    if not spill.bytes:
        return
    rows = spill.tokens * RowFormat.of(options).row_bytes // options.max_len
    free = _free(claimed)
    about = "about" if spill.sampled else "up to"
    if spill.bytes + rows >= _WORTH_A_LINE:
        log.info(
            "decoding needs %s %s beside the output until it is complete, the rows about %s; %s are free",
            about, byte_size(spill.bytes), byte_size(rows), byte_size(free),
        )  # fmt: skip
    # of a mixture, or where documents go, how much is kept is known after decoding only
    kept = rows if options.long in ("split", "error") and not options.weights else 0
    if (spill.bytes + kept) * (_LEAST if spill.sampled else 1) > free:
        raise PackerError(
            f"{claimed.out}: the decoded source needs {about} {byte_size(spill.bytes)} and the rows about "
            f"{byte_size(rows)}, {byte_size(free)} are free: free some space, or choose an --output with more"
        )


def check_tokenizing(folder: Path, source: Source, out: Path) -> None:
    """Log what tokenizing into a folder still needs on disk, and what is free, where it is worth a line.

    Raises:
        PackerError: the tokens that are not there from before cannot fit.
    """
    size = source.spill_size(folder)
    free = shutil.disk_usage(folder).free
    about = "about" if size.sampled else "up to"
    if size.bytes >= _WORTH_A_LINE:
        log.info("tokenizing needs %s %s for the output; %s are free", about, byte_size(size.bytes), byte_size(free))
    if size.bytes * (_LEAST if size.sampled else 1) > free:
        raise PackerError(
            f"{out}: the tokens need {about} {byte_size(size.bytes)}, {byte_size(free)} are free: "
            "free some space, or choose an --output with more"
        )


def check_writing(claimed: Workspace, rows: int) -> None:
    """Raise a PackerError if what is not written yet of rows of so many bytes cannot fit."""
    needed = rows - claimed.committed_bytes()
    free = _free(claimed)
    if needed > free:
        raise PackerError(
            f"{claimed.out}: the rows to be written need {byte_size(needed)}, {byte_size(free)} are free: "
            "free some space and repeat the same command, or choose an --output with more"
        )


def _free(claimed: Workspace) -> int:
    return shutil.disk_usage(claimed.work).free

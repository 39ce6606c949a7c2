"""Check free disk space before hours of work, not after."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from packer.errors import PackerError
from packer.facts import SourceIdentity
from packer.options import PackOptions, byte_size
from packer.output.packed_output import PackedOutput
from packer.shards.row_format import RowFormat
from packer.sources import OpenDocuments, Source

_WORTH_A_LINE = 10**6  # bytes
_SURELY = 0.8  # a size estimated from a sample of the source is at least this much of the true one

log = logging.getLogger(__name__)


def check_decoding(claimed: PackedOutput, source: OpenDocuments, options: PackOptions) -> None:
    """Log how much disk space decoding needs and how much is free, unless it is little or all is decoded already.

    Raises:
        PackerError: the decoded source does not fit, or not together with the rows.
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
            about,
            byte_size(spill.bytes),
            byte_size(rows),
            byte_size(free),
        )
    # with a mixture, or if long documents are cut or dropped, the size of the rows is known after decoding only
    kept = rows if options.long in ("split", "error") and not options.weights else 0
    if (spill.bytes + kept) * (_SURELY if spill.sampled else 1) > free:
        raise PackerError(
            f"{claimed.out}: the decoded source needs {about} {byte_size(spill.bytes)} and the rows about "
            f"{byte_size(rows)}, {byte_size(free)} are free: free some space, or choose an --output with more"
        )


def check_tokenizing(folder: Path, source: Source, out: Path) -> None:
    """Log how much disk space tokenizing still needs and how much is free, unless it is little.

    Args:
        folder: folder of the decoded pieces; those that are there already are not counted.
        source: text to be tokenized.
        out: output, named in the error.

    Raises:
        PackerError: the tokens do not fit.
    """
    size = source.spill_size(folder)
    free = shutil.disk_usage(folder).free
    about = "about" if size.sampled else "up to"
    if size.bytes >= _WORTH_A_LINE:
        log.info("tokenizing needs %s %s for the output; %s are free", about, byte_size(size.bytes), byte_size(free))
    if size.bytes * (_SURELY if size.sampled else 1) > free:
        raise PackerError(
            f"{out}: the tokens need {about} {byte_size(size.bytes)}, {byte_size(free)} are free: "
            "free some space, or choose an --output with more"
        )


def check_writing(claimed: PackedOutput, rows: int) -> None:
    """Check that the rows that are not written yet fit.

    Args:
        claimed: the output.
        rows: size of all rows in bytes, committed shards included.

    Raises:
        PackerError: they do not fit.
    """
    needed = rows - claimed.committed_bytes()
    free = _free(claimed)
    if needed > free:
        raise PackerError(
            f"{claimed.out}: the rows to be written need {byte_size(needed)}, {byte_size(free)} are free: "
            "free some space and repeat the same command, or choose an --output with more"
        )


def check_mixture(claimed: PackedOutput, identity: SourceIdentity, options: PackOptions) -> None:
    """Check that rows for what a mixture takes can fit, before its documents are looked through: it may repeat them.

    Args:
        claimed: the unfinished output.
        identity: the source; anything but a mixture passes.
        options: what shapes the rows.

    Raises:
        PackerError: they cannot fit.
    """
    if options.untrained == "drop":  # how much of it stays is known later
        return
    kept = sum(part.taken.tokens_kept for part in identity.mixture)
    check_writing(claimed, kept // options.max_len * RowFormat.of(options).row_bytes)


def _free(claimed: PackedOutput) -> int:
    return shutil.disk_usage(claimed.work).free

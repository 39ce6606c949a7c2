"""Check that the disk has enough free space before packing begins."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from packer.errors import PackerError
from packer.facts import SourceIdentity
from packer.options import PackOptions, byte_size
from packer.output.unfinished_pack import UnfinishedPack
from packer.shards.file_names import or_other_output
from packer.shards.row_format import RowFormat
from packer.sources.corpus import Corpus
from packer.stores import AnyPath

_WORTH_LOGGING = 0.25  # share of the free space
_CERTAIN_SHARE = 0.8  # share of a size estimated from a sample that is needed for certain

log = logging.getLogger(__name__)


def check_decoding(claimed: UnfinishedPack, source: Corpus, options: PackOptions, workers: int) -> None:
    """Log the disk space that decoding needs and the free space, if it needs at least a quarter of that.

    Args:
        claimed: unfinished output.
        source: source to decode.
        options: options of the pack.
        workers: number of shards that this process writes at a time.

    Raises:
        PackerError: the decoded source, or the decoded source and the rows, do not fit.
    """
    spill = source.spill_size(claimed.spill)
    if not spill.bytes:
        return
    rows = spill.tokens * RowFormat.of(options).row_bytes // options.max_len
    free = _free(claimed)
    about = "about" if spill.sampled else "up to"
    if spill.bytes + rows >= _WORTH_LOGGING * free:
        log.info(
            "decoding needs %s %s in addition to the output until it is complete, the rows about %s; %s are free",
            about,
            byte_size(spill.bytes),
            byte_size(rows),
            byte_size(free),
        )
    # In a mixture, or if long documents are truncated or dropped, the size of the rows is not known before decoding.
    kept = claimed.disk_needed(rows, workers * options.shard_size)
    kept = kept if options.long in ("split", "error") and not options.weights else 0
    if (spill.bytes + kept) * (_CERTAIN_SHARE if spill.sampled else 1) > free:
        raise PackerError(
            f"{_place(claimed)}: the decoded source needs {about} {byte_size(spill.bytes)} and the rows about "
            f"{byte_size(rows)}, {byte_size(free)} are free: free some space{_or_other(claimed)}"
        )


def check_tokenizing(folder: Path, source: Corpus, out: AnyPath) -> None:
    """Log the disk space that tokenizing still needs and the free space, unless it needs little.

    Args:
        folder: folder of the decoded pieces; existing pieces need no more space.
        source: text to tokenize.
        out: output, for the error message.

    Raises:
        PackerError: the tokens do not fit.
    """
    size = source.spill_size(folder)
    free = shutil.disk_usage(folder).free
    about = "about" if size.sampled else "up to"
    if size.bytes >= _WORTH_LOGGING * free:
        log.info("tokenizing needs %s %s for the output; %s are free", about, byte_size(size.bytes), byte_size(free))
    if size.bytes * (_CERTAIN_SHARE if size.sampled else 1) > free:
        raise PackerError(
            f"{out}: the tokens need {about} {byte_size(size.bytes)}, {byte_size(free)} are free: "
            "free some space, or choose an --output with more"
        )


def check_writing(claimed: UnfinishedPack, rows: int, options: PackOptions, workers: int) -> None:
    """Check that the rows still to be written fit.

    Args:
        claimed: unfinished output.
        rows: bytes of all rows, committed shards included.
        options: options of the pack.
        workers: number of shards that this process writes at a time.

    Raises:
        PackerError: they do not fit.
    """
    needed = claimed.disk_needed(rows, workers * options.shard_size)
    free = _free(claimed)
    if needed > free:
        raise PackerError(
            f"{_place(claimed)}: the rows to be written need {byte_size(needed)}, {byte_size(free)} are free: "
            f"free some space and repeat the same command{_or_other(claimed)}"
        )


def check_mixture(claimed: UnfinishedPack, identity: SourceIdentity, options: PackOptions, workers: int) -> None:
    """Check that the rows of a mixture can fit before they are planned, because a mixture may repeat its documents.

    Args:
        claimed: unfinished output.
        identity: identity of the source; only a mixture is checked.
        options: options of the pack.
        workers: number of shards that this process writes at a time.

    Raises:
        PackerError: they cannot fit.
    """
    if options.untrained == "drop" or options.index_only:  # the size of the rows is not known yet
        return
    kept = sum(part.taken.tokens_kept for part in identity.mixture)
    check_writing(claimed, kept // options.max_len * RowFormat.of(options).row_bytes, options, workers)


def _free(claimed: UnfinishedPack) -> int:
    return shutil.disk_usage(claimed.disk).free


def _place(claimed: UnfinishedPack) -> AnyPath:
    """Return what is too small: the output, or the folder of temporary files."""
    return claimed.disk.parent if claimed.store.is_remote else claimed.out


def _or_other(claimed: UnfinishedPack) -> str:
    if claimed.store.is_remote:
        return ", or choose a TMPDIR with more"
    return ", or choose an --output with more" if or_other_output(claimed.out) else ""

"""Open a packed dataset as a source: what it holds, what cannot be recovered, and what is refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from packer.column_names import ROLES
from packer.errors import OtherSourceError, PackerError
from packer.shards.file_names import MANIFEST
from packer.shards.manifest import Manifest
from packer.shards.reader import check_sizes, read_manifest
from packer.sources.documents import TURN_STARTS, Columns, columns_of_side
from packer.sources.files.hugging_face import STATE, no_splits
from packer.sources.packed.packed_documents import PackedDocuments
from packer.sources.packed.packed_rows import PackedRows
from packer.sources.source import Source
from packer.stores import AnyPath, any_path, is_remote

log = logging.getLogger(__name__)


def packed_folder(source: object) -> Path | None:
    """Return the folder of a source that is a local packed dataset, intact or not; None for any other source."""
    if not isinstance(source, (str, Path)) or is_remote(source):
        return None
    folder = any_path(source)
    try:
        return folder if isinstance(folder, Path) and is_packed_folder(folder) else None
    except (OSError, ValueError):  # no path, such as a name that is too long
        return None


def is_packed_folder(folder: AnyPath) -> bool:
    """Whether a folder holds a packed dataset, rather than one with a manifest.json of another kind."""
    if not (folder / MANIFEST).is_file():
        return False
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return (folder / STATE).exists()  # damaged: `read_manifest` explains how
    return isinstance(manifest, dict) and "format_version" in manifest


def refuse_rows(name: str, columns: Sequence[str]) -> None:
    """Raise a PackerError if a source has the columns of packed rows, which must not be read as documents."""
    if {"seq_lengths", "doc_ids", "doc_starts"} <= set(columns):
        raise PackerError(
            f"{name} holds packed rows, not documents: give the folder of the packed dataset, with its {MANIFEST}"
        )


def packed_columns(folder: Path) -> list[str]:
    """Return the names of the columns of a packed dataset as a source; raises as `read_manifest` does."""
    options = read_manifest(folder).options
    return ["input_ids", "labels", *options.kept, *options.keep_tokens]


def open_packed(folder: Path, split: str | None, columns: Columns) -> Source:
    """Open a packed dataset as the documents that it was packed from; no row is read.

    Args:
        folder: the packed dataset.
        split: must be None.
        columns: columns to read, which are those of a side of preference pairs if these are packed.

    Raises:
        PackerError: it is damaged, its documents cannot be restored, or it does not have the columns.
    """
    if split is not None:
        raise no_splits(f"{folder} is packed", split)
    manifest = read_manifest(folder, intact=True)
    _refuse_unrestorable(folder, manifest)
    side = _side(folder, manifest, columns)
    _check_columns(folder, manifest, columns)
    check_sizes(folder, manifest)
    if side != 1:
        _warn_of_losses(folder, manifest)
    kept = [name for name in columns.extra if name not in columns.per_token]
    rows = PackedRows.of(folder, manifest, kept, columns.per_token)
    documents = range(rows.documents) if side is None else range(side, rows.documents, len(ROLES))
    inputs = (PackedDocuments(rows_of=rows, columns=columns, documents=documents),)
    chats = TURN_STARTS in manifest.options.kept
    return Source(str(folder), inputs, columns, pad_id=manifest.options.pad_id, holds_chats=chats)


def _refuse_unrestorable(folder: Path, manifest: Manifest) -> None:
    """Raise a PackerError if the rows do not have all that makes their documents."""
    if manifest.options.lengths_column is not None:
        raise PackerError(f"{folder} was packed from lengths alone, so there are no tokens to pack")
    if manifest.options.index_only:
        raise PackerError(
            f"{folder} is an index, which has no tokens: pack its source, or write them first with `packer materialize`"
        )
    names = [part.name for part in manifest.source.mixture]
    if names:
        raise PackerError(
            f"{folder} is a mixture of {len(names)} sources ({', '.join(names)}), whose documents cannot be "
            "distinguished from those of one source: pack these sources again with the same weights"
        )
    if manifest.source.labels and not manifest.options.labels:
        raise PackerError(
            f"{folder} was packed with --no-labels from a source with labels, which are not in its rows: "
            "pack that source again"
        )


def _side(folder: Path, manifest: Manifest, columns: Columns) -> int | None:
    """Return which side of preference pairs the columns belong to; None for documents that are not pairs."""
    sides = [columns_of_side(role).input_ids for role in ROLES]
    if columns.input_ids in sides and not manifest.options.pairs:
        raise PackerError(f"{folder} holds no preference pairs: leave --pairs out")
    if columns.input_ids not in sides and manifest.options.pairs:
        raise PackerError(f"{folder} holds preference pairs: pack it again with --pairs, and --long truncate or drop")
    return sides.index(columns.input_ids) if manifest.options.pairs else None


def _check_columns(folder: Path, manifest: Manifest, columns: Columns) -> None:
    """Raise a PackerError if the rows do not have a column, or its values do not fit their documents."""
    options = manifest.options
    if not options.pairs:
        for name, own in ((columns.input_ids, "input_ids"), (columns.labels, "labels")):
            if name != own:
                flag = "--input-column" if own == "input_ids" else "--labels-column"
                raise OtherSourceError(
                    f"{folder}: no column '{name}' (it is packed, into '{own}')", f"leave {flag} out"
                )
    for name in columns.extra:
        is_per_token = name in columns.per_token
        if name not in (options.keep_tokens if is_per_token else options.kept):
            kept = ", ".join((*options.kept, *options.keep_tokens)) or "none"
            flag = "--keep-tokens" if is_per_token else "--keep"
            raise PackerError(
                f"{folder}: no column '{name}' with a value per {'token' if is_per_token else 'document'} "
                f"(kept columns: {kept}); pack its source again with {flag} {name}"
            )
    if TURN_STARTS in columns.extra and manifest.totals.tokens_lost:
        raise PackerError(
            f"{folder}: documents were truncated or dropped, so '{TURN_STARTS}' does not fit all of them: "
            "leave it out, or pack the source again"
        )


def _warn_of_losses(folder: Path, manifest: Manifest) -> None:
    """Log a warning for each kind of documents, tokens and labels that were in the source and are not in the rows."""
    totals = manifest.totals
    if totals.documents_truncated:
        log.warning("%s: truncated documents stay truncated (%s)", folder, f"{totals.documents_truncated:,}")
    dropped = {reason: count for reason, count in totals.documents_dropped.items() if count and reason != "empty"}
    if dropped:
        log.warning(
            "%s: dropped documents are empty now, so doc_ids stay the same (%s)",
            folder,
            ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in dropped.items()),
        )
    left_out = totals.tokens_dropped.get("untrained", 0)
    if left_out:
        log.warning("%s: tokens that --untrained drop left out are missing (%s)", folder, f"{left_out:,}")
    begins = totals.segments - totals.documents_packed
    if begins and manifest.source.labels and not manifest.options.overlap:
        log.warning(
            "%s: tokens at which pieces of documents begin stay without loss (%s): rows do not hold their labels",
            folder,
            f"{begins:,}",
        )

"""Claim a packed dataset, in a local folder or in object storage, to begin or resume it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from packer.output.claim_folder import claim
from packer.output.claim_stored import claim_stored, finish_removal, refuse_replacing_stored, removal_of
from packer.output.packed_output import PACKED, PackedOutput
from packer.output.replace_folder import restore
from packer.output.request import Request
from packer.output.unfinished_pack import UnfinishedPack
from packer.stores import AnyPath, RemotePath


@contextlib.contextmanager
def claim_pack(
    out: AnyPath, request: Request, *, sync: bool, overwrite: bool, shared: bool, patience: float
) -> Iterator[UnfinishedPack]:
    """Claim a packed dataset for this process, or together with others; see `claim` and `claim_stored`.

    Args:
        out: path of the dataset.
        request: request for it; an unfinished dataset is resumed only if its request is equal.
        sync: fsync local files and folders.
        overwrite: replace a complete dataset in a folder, and discard an unfinished one that is damaged or has another
            request.
        shared: claim a folder together with other processes; what lies in object storage always is.
        patience: seconds without a sign of life after which a process is considered dead.

    Raises:
        PackerError: the dataset is in use, damaged, of another request, complete, or not made by packer.
    """
    if isinstance(out, RemotePath):
        with claim_stored(out, request, overwrite=overwrite, patience=patience) as stored:
            yield stored
        return
    with claim(out, PACKED, request, sync=sync, overwrite=overwrite, shared=shared) as folder:
        yield PackedOutput.of(folder)


def way_to_replace(out: AnyPath) -> str:
    """Return how a user can replace a complete dataset, for a message."""
    if isinstance(out, RemotePath):
        return f"remove it first (`{removal_of(out)}`)"
    return "replace it with --overwrite"


def refuse_replacing(out: AnyPath) -> None:
    """Raise a PackerError for a complete dataset in object storage, which cannot be replaced in one step."""
    if isinstance(out, RemotePath):
        refuse_replacing_stored(out)


def finish_interrupted(out: AnyPath) -> None:
    """Finish what a process was doing to a dataset when it was killed: a replacement, or the removal of leftovers."""
    if isinstance(out, RemotePath):
        finish_removal(out)
    else:
        restore(out, PACKED)

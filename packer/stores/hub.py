"""Datasets on the Hugging Face Hub, downloaded to its cache.

"hf://datasets/ORG/NAME" names a dataset on the Hub, with "@REVISION" and "/PATH" if only a part of it is meant. Where
no such local path exists, "ORG/NAME" names it, too.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from packer.errors import PackerError, first_line, hub_is_unreachable
from packer.plain_text import with_hub_ids

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""Matches ids of datasets: org/name."""

# A Path has lost a slash. A revision is a branch, a tag, a commit, or like refs/pr/1.
_ADDRESS = re.compile(r"hf:/{1,2}datasets/([^/@]+/[^/@]+)(?:@((?:refs/[^/]+/)?[^/]+))?(?:/(.*))?")
TIMEOUT = 10
"""Seconds for the Hub to answer. Other functions of its client retry for half a minute, and log."""


def at_address(path: str | Path) -> str | Path:
    """Return the id of a dataset for an address that begins with hf://, and the path of a download for a part of one.

    Returns other paths unchanged. Raises a PackerError if the address cannot be downloaded.
    """
    if not str(path).startswith("hf:/"):
        return path
    address = _ADDRESS.fullmatch(str(path).rstrip("/"))
    if address is None:
        raise PackerError(
            f"{path}: an address on the Hub is like hf://datasets/org/name, with or without /PATH at its end"
        )
    hub_id, revision, inside = address.groups()
    return hub_id if revision is None and not inside else download(hub_id, revision, inside or "")


def names_hub(path: object) -> bool:
    """Whether a path is an address that begins with hf://, or the id of a dataset rather than a local path."""
    is_id = isinstance(path, str) and HUB_ID.fullmatch(path) is not None and not os.path.lexists(path)
    return is_id or str(path).startswith("hf:/")


def download(hub_id: str, revision: str | None = None, inside: str = "", *, packed: bool = False) -> Path:
    """Download a dataset, or a file or folder in it, unless it is in the cache; return its path.

    Without a network, or with HF_HUB_OFFLINE=1, an earlier download is used. Raises a PackerError if there is no such
    dataset or path, if it cannot be downloaded, or, with `packed`, if it has no manifest.
    """
    from huggingface_hub import constants, snapshot_download

    files = [inside, f"{inside}/*"] if inside else None
    if not constants.HF_HUB_OFFLINE and "manifest.json" not in names_in(hub_id, revision) and packed:
        raise PackerError(
            f"{hub_id} on the Hugging Face Hub is not a packed dataset: it has no manifest.json; if a folder in it "
            f"has one, name that, as in hf://datasets/{hub_id}/FOLDER"
        )
    try:
        found = snapshot_download(hub_id, repo_type="dataset", revision=revision, allow_patterns=files)
    except Exception as error:  # its type depends on versions and the HTTP library
        raise PackerError(
            f"{hub_id}: neither a local path nor a download from the Hugging Face Hub ({first_line(error)})"
        ) from error
    path = Path(found, inside)
    if not path.exists():
        raise PackerError(f"{hub_id} on the Hugging Face Hub has no {inside}: check the path")
    return path


def has_files(hub_id: str, names: set[str]) -> bool:
    """Whether a dataset has files of these names; with HF_HUB_OFFLINE=1, whether they were downloaded."""
    from huggingface_hub import constants, try_to_load_from_cache

    if constants.HF_HUB_OFFLINE:
        return all(isinstance(try_to_load_from_cache(hub_id, name, repo_type="dataset"), str) for name in names)
    return names <= names_in(hub_id)


def names_in(hub_id: str, revision: str | None = None) -> set[str]:
    """Return the names of all files of a dataset. Raises a PackerError if the Hub has none, or cannot be reached."""
    from huggingface_hub import HfApi

    try:
        found = HfApi().dataset_info(hub_id, revision=revision, timeout=TIMEOUT)
    except Exception as error:  # its type depends on versions and the HTTP library
        if hub_is_unreachable(error):
            raise PackerError(
                f"{hub_id} is not a local path, and the Hugging Face Hub cannot be reached ({first_line(error)}); "
                "download it where there is a network, and name its folder (HF_HUB_OFFLINE=1 uses past downloads)"
            ) from error
        raise PackerError(
            f"{hub_id}: neither a local path nor a dataset on the Hugging Face Hub ({first_line(error)}); "
            "check the spelling"
        ) from error
    return {file.rfilename for file in found.siblings or ()}


def called(folder: Path) -> Path:
    """Return the path by which a packed dataset is called: its folder, or for a download its name on the Hub."""
    named = with_hub_ids(str(folder))
    return folder if named == str(folder) else Path(Path(named).name)


def is_cached_file(link: Path) -> bool:
    """Whether a symbolic link is a downloaded file: snapshots/COMMIT/NAME leads to blobs/HASH in the same folder."""
    file = Path(os.path.realpath(link))
    is_beside = file.parent.parent in Path(os.path.realpath(link.parent)).parents
    return file.parent.name == "blobs" and is_beside and file.is_file()

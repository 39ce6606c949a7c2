"""Join the files of several paths to one source."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from packer.errors import PackerError
from packer.sources.files.hugging_face import Found
from packer.stores import AnyPath


def join_files(name: str, found: Sequence[Found]) -> Found:
    """Join the files that were found at several paths, in the order of the paths.

    Files are named relative to the deepest folder that holds all of them, so that their names do not change when all of
    them are moved together.

    Args:
        name: name of the source in messages.
        found: files of each path.

    Raises:
        PackerError: a file is at two paths, or a saved dataset has an indices mapping.
    """
    origins: dict[str, str] = {}
    for each in found:
        if each.indices is not None:
            raise PackerError(
                f"{each.name}: a saved dataset with an indices mapping cannot be one of several paths; "
                "save it again after .flatten_indices()"
            )
        real = [os.path.realpath(path) if isinstance(path, Path) else str(path) for path, _ in each.files]
        for file in real:
            if file in origins:
                where = f"at {origins[file]} and at {each.name}" if origins[file] != each.name else f"at {each.name}"
                raise PackerError(f"{file} is given twice, {where}: leave one of them out")
        origins |= dict.fromkeys(real, each.name)
    files = [path for each in found for path, _ in each.files]
    places = [_place(path) for path in files]
    root = os.path.commonpath([os.path.dirname(place) for place in places])  # noqa: PTH120
    pad_ids = (each.pad_id for each in found)
    return Found(
        name,
        [(file, Path(place).relative_to(root).as_posix()) for file, place in zip(files, places, strict=True)],
        pad_id=next((pad_id for pad_id in pad_ids if pad_id is not None), None),
    )


def _place(path: AnyPath) -> str:
    """Return an absolute path; that of an object begins with its store."""
    return os.path.abspath(path) if isinstance(path, Path) else f"/{path}"  # noqa: PTH100 (resolve would follow links)

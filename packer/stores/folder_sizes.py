"""Sizes of all objects in a folder, from a request per 1,000 of them."""

from __future__ import annotations

from packer.stores.remote_path import RemotePath
from packer.stores.requests import count, requested


def folder_sizes(folder: RemotePath) -> dict[str, int]:
    """Return the bytes of the objects directly inside a folder, by name; empty if there is no such folder."""
    import obstore

    store, prefix = folder.store, f"{folder.key}/" if folder.key else None
    found = requested(str(folder), lambda: obstore.list_with_delimiter(store, prefix))["objects"]
    count(lists=1 + len(found) // 1000)
    return {each["path"].rpartition("/")[2]: each["size"] for each in found}

"""Files in folders and in object storage, such as s3://bucket/key.

paths.py         paths as users write them
store.py         `Store`, the only way in which outputs are written: to a folder, or a prefix in object storage
local_files.py   locks, temporary files and temporary memory
remote_path.py   `RemotePath`, which reads and writes objects like a `pathlib.Path`, and as seekable files
buckets.py       buckets, opened once per process, and requests to them
hub.py           datasets on the Hugging Face Hub
mirror.py        `Mirror`, memory as large as an object, into which parts of the object are fetched
"""

from packer.stores.remote_path import AnyPath, RemotePath, any_path, is_remote, pinned

__all__ = ["AnyPath", "RemotePath", "any_path", "is_remote", "pinned"]

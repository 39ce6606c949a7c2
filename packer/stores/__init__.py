"""Files in folders and in object storage, such as s3://bucket/key, with memory into which parts of objects are read.

store.py         `Store`, through which outputs are written: a folder, or a prefix in object storage
local_files.py   locks of local files, files to be uploaded, and copies of objects
remote_path.py   `RemotePath`, which reads and writes objects like a `pathlib.Path`, also as files that can be sought
buckets.py       buckets, which are opened once per process, and requests to them
mirror.py        `Mirror`, memory of the size of an object that holds the parts that were fetched
"""

from packer.stores.remote_path import AnyPath, RemotePath, any_path, each_opened_at, is_remote, pinned

__all__ = ["AnyPath", "RemotePath", "any_path", "each_opened_at", "is_remote", "pinned"]

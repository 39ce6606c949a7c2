"""Object storage: paths such as s3://bucket/key, and memory into which parts of objects are read when they are needed.

address.py       addresses, taken apart and put together like paths
remote_path.py   `RemotePath`, which reads and writes objects like a `pathlib.Path`, also as files that can be sought
hub_path.py      `HubPath`, which reads files of the Hugging Face Hub
listing.py       folders whose content was listed once, sizes of the objects in a folder, and copies of objects
requests.py      requests to a store, repeated if they fail, with one line for an error
map_whole.py     map whole files, local or in object storage
mirror.py        `Mirror`, memory of the size of an object that holds the parts that were fetched
temporary_files.py  files to be uploaded, and copies of objects
"""

from packer.stores.remote_path import AnyPath, RemotePath, any_path, each_at, each_opened_at, is_remote

__all__ = ["AnyPath", "RemotePath", "any_path", "each_at", "each_opened_at", "is_remote"]

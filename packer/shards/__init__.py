"""The bytes on disk: what a packed dataset consists of, written, read and checked.

`manifest.py` is the commit; `packer.facts` and `option_kinds.py` say what each of its fields must hold. `row_format.py`
has the columns of a shard, `writer.py` writes one, `reader.py` maps them, `files.py` hashes them, `structure.py` knows
what makes rows of their lists, and `sharing.py` which segments may share one. `figures.py` counts what the manifest
says again, and `check_shards.py` checks every byte.
Reading needs numpy and pyarrow alone.
"""

from packer.shards.manifest import FORMAT_VERSION, MANIFEST, Manifest, ShardEntry
from packer.shards.reader import check_batch, open_shard, read_manifest

__all__ = ["FORMAT_VERSION", "MANIFEST", "Manifest", "ShardEntry", "check_batch", "open_shard", "read_manifest"]

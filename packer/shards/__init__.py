"""Files of a packed dataset: their format, and how they are written, read and checked.

`manifest.py` describes the whole dataset, with the entries of its shards, and is written last; `file_names.py` names
the files. `packer.json_records` declares the type of each field. `row_format.py`
defines the columns of a shard, `writer.py` writes a shard, `reader.py` maps it into memory, and `files.py` hashes it.
`located_rows.py` has rows before they are written.
`structure.py` checks that the lists of a shard form rows, `sharing.py` that their segments may share a row, and
`check_shards.py` every byte, and that the counts in the manifest are true. Reading needs only numpy and pyarrow.
"""

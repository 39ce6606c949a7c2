"""Files of a packed dataset: their format, and how they are written, read and checked.

manifest.py      the description of a dataset, with the entries of its shards; it is written last files.py         names
and hashes of the files row_format.py    columns of a shard located_rows.py  segments of rows, before they are written
and in record batches writer.py        writing of shards reader.py        reading of manifests, and mapping of shards
into memory; needs only NumPy and pyarrow row_checks.py    checks that the lists of a record batch form rows, and that
segments may share a row check_shards.py  checks of every byte, and of the counts in the manifest
"""

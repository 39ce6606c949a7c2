"""Files of a packed dataset: their format, and how they are written, read and checked.

manifest.py      the description of a dataset, with the entries of its shards, which is written last
files.py         names and hashes of the files
row_format.py    columns of a shard
located_rows.py  segments of rows, before they are written and in record batches
writer.py        write a shard
reader.py        read the manifest, and map shards into memory; needs only NumPy and pyarrow
row_checks.py    check that the lists of a record batch form rows, and that their segments may share a row
check_shards.py  check every byte, and that the counts in the manifest are true
"""

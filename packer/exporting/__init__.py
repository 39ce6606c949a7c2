"""Export a packed dataset for another trainer, as Parquet files with exactly the columns that it reads.

    targets.py       what a user writes for each trainer, and the files and columns that it reads
    columns.py       rows -> the columns of each trainer
    write_export.py  shards -> Parquet files, one shard at a time on each core

The columns are made by the functions that make the loader's batches, so that both train on the same values.
"""

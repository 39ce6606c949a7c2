"""Export of a packed dataset for another trainer, as Parquet files with exactly the columns that the trainer reads.

    targets.py       trainers: their configuration, and the files and columns that they read
    columns.py       rows -> columns of each trainer
    write_export.py  shards -> Parquet files, one shard at a time on each core

The functions that make the loader's batches also make the columns, so that both train on the same values.
"""

"""Export of a packed dataset for another trainer, as files with exactly the columns that it reads, or for the Hub.

    targets.py       trainers: their configuration, and the files and columns that they read
    columns.py       rows -> columns of each trainer; small files, such as the dataset card for the Hugging Face Hub
    write_export.py  shards -> files, one shard at a time on each core

The functions that make the loader's batches also make the columns, so that both train on the same values.
"""

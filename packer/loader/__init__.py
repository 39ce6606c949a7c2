"""Load packed datasets for training: rows by number, and batches in which documents do not attend to each other.

    dataset.py        rows by number, of a disk, object storage, or an index with its source
    open_shards.py    shards while they are mapped: columns of record batches as arrays

Which rows each rank trains on, and when; an order depends on the dataset, the seed and the epoch, not on the ranks:

    batch_sampler.py      batches of a rank, of about equal work if wanted, with a state to resume from
    row_order.py          order of all rows by hashes, or one in which each rank reads a few shards of its own at a time
    document_rows.py      documents of each row, for trainers that make their own examples

Rows, or raw examples, to the batch of a trainer; everything is NumPy until the last step, which makes tensors:

    collating.py      collate, flatten and batches, which a training loop calls
    batch_formats.py  one record for each trainer, with the options that it supports
    batch_input.py    rows and raw examples as arrays, and arrays as tensors
    row_segments.py   positions, labels, loss weights and fixed shapes from segment boundaries
    token_masking.py  random masking of tokens
    loss.py           losses as means over tokens, sequences or documents
    schedule.py       effect of packing on batch size, steps and betas

Shards in a cache folder on the node's disk, of a dataset in object storage or an index whose source is there. There is
no server: processes agree by locks on files, which the system releases when a process ends.

    shard_cache.py          shards of a dataset: each is fetched by one process, ahead if possible, while others wait
    cache_space.py          how much shards may take, which are evicted for others, and the files in the folder
    shard_providers.py      what writes shards to it: downloads, or an index with its source

    index_tokens.py         tokens of rows of an index, located together and copied from the mapped source

Requires NumPy and pyarrow; torch only to return tensors, obstore and xxhash only for object storage, and what reads
inputs only for the source of an index.
"""

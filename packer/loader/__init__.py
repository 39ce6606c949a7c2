"""Load packed datasets for training: rows by number, and batches in which documents do not attend to each other.

    load.py           paths -> a packed dataset
    dataset.py        rows by number, from a disk, object storage, or an index with its source
    combined.py       several datasets as one, in shares
    open_shards.py    mapped shards: columns of record batches as arrays

Which rows each rank trains on, and when; an order depends on the dataset, the seed and the epoch, not on the ranks:

    batch_sampler.py      batches of a rank, with a state to resume from
    balance.py            steps, batches and groups of rows of about equal work
    row_order.py          order of all rows; lanes, in which each rank reads a few shards of its own at a time; and the
                          endless order from which an epoch of several datasets takes the rows of each
    document_rows.py      documents of each row, for trainers that make their own examples

Batches, from rows or raw examples. Everything is NumPy until the last step, which makes tensors:

    collating.py      collate, flatten and batches, which a training loop calls
    batch_formats.py  one record for each trainer, with the options that it supports
    batch_input.py    rows and raw examples as arrays, and arrays as tensors
    row_segments.py   positions, labels, loss weights and fixed shapes from segment boundaries
    tree_nodes.py     what each token sees in rows of trees
    token_masking.py  random masking of tokens
    loss.py           losses as means over tokens, sequences or documents
    schedule.py       effect of packing on batch size, steps and betas
    probe_step.py     which documents leak into others in a training step, in all processes of a job
    probe_rows.py     the documents that are probed

    index_tokens.py   tokens of an index, copied from the mapped source

The cache of a node, for datasets in object storage. There is no server: processes agree by locks on files, which the
system releases when a process ends.

    shard_cache.py    shards of a dataset, each fetched by one process while others wait
    cache_space.py    files in the cache folder, its limit, and eviction

Needs NumPy and pyarrow only; torch to return tensors, and obstore and xxhash for object storage.
"""

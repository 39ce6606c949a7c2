"""Load packed datasets for training: rows by number, and batches in which documents do not attend to each other.

    load.py           paths -> a packed dataset, or several as one in shares, or only the documents of each row
    dataset.py        rows by number, from a local disk, object storage, or an index with its source
    open_shards.py    mapped shards: columns of record batches as arrays
    index_tokens.py   tokens of an index, copied from the mapped source
    shard_cache.py    the cache of a node, for datasets in object storage

Rows that each rank trains on, and their order. The order depends on the dataset, the seed and the epoch, not on the
ranks:

    batch_sampler.py  batches of a rank, with a state to resume from
    row_order.py      order of all rows; lanes, in which each rank reads a few of its own shards at a time; the endless
                      order of several datasets; and steps of about equal work

Batches, from rows or raw examples. Everything is NumPy until the last step, which converts arrays to tensors:

    training_loop.py  functions that a training loop calls: batches, losses and the schedule
    batch_formats.py  one class for each trainer's batches, with its options; and random masking of tokens
    row_tokens.py     rows of a batch as arrays: positions, labels, loss weights, fixed shapes, attention in trees

Needs only NumPy and pyarrow; torch to return tensors, obstore and xxhash for object storage, and xxhash and Numba for
an index with its source.
"""

"""Load packed datasets for training: rows by number, and batches in which documents do not attend to each other.

    load.py           paths -> a packed dataset, or several as one in shares
    dataset.py        rows by number, from a disk, object storage, or an index with its source
    open_shards.py    mapped shards: columns of record batches as arrays
    index_tokens.py   tokens of an index, copied from the mapped source
    shard_cache.py    the cache of a node, for datasets in object storage

Which rows each rank trains on, and when; an order depends on the dataset, the seed and the epoch, not on the ranks:

    batch_sampler.py  batches of a rank, with a state to resume from
    row_order.py      order of all rows; lanes, in which each rank reads a few shards of its own at a time; the endless
                      order from which an epoch of several datasets takes rows; and steps of about equal work
    document_rows.py  documents of each row, for trainers that make their own examples

Batches, from rows or raw examples. Everything is NumPy until the last step, which makes tensors:

    training_loop.py  batches, losses and the schedule, as a training loop calls them
    batch_formats.py  one record for each trainer, with the options that it supports; and random masking of tokens
    row_tokens.py     rows of a batch as arrays: positions, labels, loss weights, fixed shapes, what tokens of trees see

Needs NumPy and pyarrow only; torch to return tensors, obstore and xxhash for object storage, and xxhash and Numba for
an index with its source.
"""

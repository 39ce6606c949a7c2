"""Which rows each rank trains on, and when: orders of an epoch, and the batches that they are divided into.

An order depends on the dataset, the seed and the epoch, not on the ranks, so that another number of them can resume.

    batch_sampler.py      batches of a rank, with a state to resume from
    lanes.py              an order in which each rank reads a few shards of its own at a time
    attention_balance.py  batches of about equal work
"""

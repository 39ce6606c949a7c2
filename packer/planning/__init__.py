"""Planning: documents are cut into segments, and segments share rows.

    packable_segments.py  cuts any range of documents, by length, between turns and by their labels, and counts what
                          becomes of each

Plans:

    make_plan.py          a plan of any kind; groups of documents, and limits besides tokens
    order_plan.py         rows that follow the order of the source

Plans of histogram algorithms, in which partitions pack their own documents, and regions what partitions leave over:

    partitioning.py       a survey of all documents, and all steps of the plan
    partition_plan.py     tasks: rows of a partition, and of the leftovers in a region; which rows each shard has
    pattern_shares.py     patterns of the solver, shared out to partitions and regions
    leftover_values.py    tokens of leftovers, passed in notes to the tasks that write them
"""

"""The plan: from document lengths to the segments of every row of every shard.

    segments.py           documents cut at max_len, as the options of a pack say
    packable_segments.py  segments of any range of documents, cut between turns or left out by their labels
    rows.py               rows, drawn or of patterns, filled with segments and located; what every plan is
    make_plan.py          a plan of any kind; plans of groups, and of limits besides tokens, held in memory

Plans of histogram algorithms, in which partitions pack their own documents, and regions what partitions leave over:

    partitions.py         blocks of documents, dealt to partitions at random
    partitioning.py       a survey of all documents, and all steps of the plan
    partition_plan.py     tasks: rows of a partition, and of the leftovers in a region; which rows each shard has
    pattern_shares.py     patterns of the solver, shared out to partitions and regions
    leftover_values.py    tokens of leftovers, passed in checkpoints to the tasks that write them

Others:

    order_plan.py         rows that follow the order of the source
    groups.py             rows that hold documents of one group only
    vector_packing.py     rows of items that have several demands, such as tokens and images
"""

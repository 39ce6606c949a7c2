"""The plan: from document lengths to the segments of every row of every shard.

    segments.py           documents cut at max_len
    cutting.py            the same as the options say: between turns, without untrained or held-out documents; of any
                          range of documents of a source
    rows.py               rows, drawn or of patterns, filled with segments and located; what every plan is
    make_plan.py          a plan of any kind

Plans of histogram algorithms, in which partitions pack their own documents, and regions what partitions leave over:

    partitions.py         blocks of documents, dealt to partitions at random
    plan_partitions.py    a survey of all documents, and all steps of the plan
    partition_tasks.py    tasks: rows of a partition, and of the leftovers in a region; which rows each shard has
    pattern_shares.py     patterns of the solver, shared out to partitions and regions
    leftover_values.py    tokens of leftovers, passed in checkpoints to the tasks that write them

Others:

    order_plan.py         rows that follow the order of the source
    whole_plan.py         rows of one group each, or with limits, held in memory
    vector_packing.py     rows of items that have several demands, such as tokens and images
"""

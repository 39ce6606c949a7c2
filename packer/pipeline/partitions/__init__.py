"""Plans of histogram algorithms: partitions pack their own documents, and regions pack what partitions leave over.

partitioning.py     all steps of the plan
partition_tasks.py  rows of a partition, and of the leftovers in a region
regions.py          which partitions belong to a region
pattern_shares.py   patterns of the solver, shared out to partitions and regions
partition_plan.py   the plan: which rows each shard has
leftover_values.py  tokens of leftovers, passed in notes to the tasks that write them
"""

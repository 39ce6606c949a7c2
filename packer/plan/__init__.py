"""The plan: from document lengths to the segments of every row of every shard.

- `make_plan`: chooses the kind of plan and makes it
- `segments`: cuts documents into segments by the options
- `rows`: fills rows with segments and locates them in the source; the types that all plans share
- `partition_plan`: partitions of the source, each packed on its own by a histogram algorithm
- `order_plan`: rows that follow the order of the source
- `whole_plan`: rows with groups or limits, planned in memory
- `vector_packing`: rows of items with several demands, such as tokens and images
"""

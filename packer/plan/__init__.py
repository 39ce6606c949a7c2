"""The plan: from document lengths to the segments of every row of every shard.

- `make_plan`: makes a plan of any kind
- `segments`: documents cut into segments, as the options say
- `rows`: rows of extents, filled with segments and located; what every plan is given, and what it is
- `partition_plan`: rows of partitions, each of which a histogram algorithm packs alone
- `order_plan`: rows that follow the order of the source
- `whole_plan`: rows of one group each, or with limits, held in memory
- `vector_packing`: rows of items that have several demands, such as tokens and images
"""

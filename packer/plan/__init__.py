"""The plan: from document lengths to the segments of every row of every shard.

- `cutting`, `segments`: cut documents at max_len, and treat a preference pair as one item
- `partitions`: deal blocks of documents at random to partitions of a shard's size
- `rows`: draw rows or follow patterns, and fill them with segments
- `located_rows`: rows whose segments are located in the source, and what every plan is: the rows of each shard
- `vector_packing`: pack items that have several demands, such as tokens and images
- `whole_plan`: hold a whole plan in memory, for groups and limits
- `groups`, `apart`: make rows of one group only, or without two segments of a group
- `mixture_shares`: decide how much a mixture takes of its sources; `hash_sample`: sample them without storing members
- `permute`: random permutations
- `threads`: run kernels in threads
"""

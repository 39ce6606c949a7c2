"""The plan: from document lengths to the segments of every row of every shard.

- `cutting`, `segments`: cut documents at max_len; `items`: treat a preference pair as one item
- `partitions`: deal blocks of documents at random to partitions of a shard's size
- `rows`: draw rows or follow patterns, and fill them with segments; `shares`: deal patterns to partitions
- `pieces`: segments located in the source, as shards and leftovers store them
- `ordered`: make rows in the order of the source again, from where they begin
- `vector_packing`: pack items that have several demands, such as tokens and images
- `whole_plan`: hold a whole plan in memory, for groups
- `groups`, `apart`: make rows of one group only, or without two segments of a group
- `mixture_shares`: decide how much a mixture takes of its sources; `hash_sample`: sample them without storing members
- `extents`, `row_kernels`: compiled kernels; `permute`: their random draws
- `account`: count every document and token; `threads`: run kernels in threads
"""

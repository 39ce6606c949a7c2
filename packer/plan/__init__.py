"""The plan: from document lengths to the segments of every row of every shard.

- `segments`: cuts documents at max_len, as the options of a pack say, and treats a preference pair as one item
- `partitions`: deal blocks of documents at random to partitions of a shard's size
- `rows`: draw rows or follow patterns, fill them with segments, and locate these in the source; what every plan is
- `vector_packing`: pack items that have several demands, such as tokens and images
- `groups`, `apart`: make rows of one group only, or without two segments of a group
- `mixture_shares`: decide how much a mixture takes of its sources, and which documents
- `permute`: random permutations
"""

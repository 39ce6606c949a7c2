"""The plan: from document lengths to the segments of every row of every shard.

- `segments`: cuts documents at max_len, as the options of a pack say, and treats a preference pair as one item
- `partitions`: deals blocks of documents at random to partitions
- `rows`: draws rows or follows patterns, fills them with segments, and locates these in the source; what every plan is
- `vector_packing`: packs items that have several demands, such as tokens and images
- `groups`: makes rows of one group only
- `permute`: random permutations
"""

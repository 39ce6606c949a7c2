"""Purposes of random streams: each use of randomness has a number that is part of its key.

Draws for different purposes are independent, even for the same seed. The numbers for packing determine the bytes on
disk, those for loading the order of rows and the masks of a training run, so they must never change.
"""

# the packer
DEAL_ROTATION = 1  # the partition that takes the first of the rows of a pattern
EQUAL_LENGTHS = 2  # the order of segments of equal extent, within a partition or the pool
ROWS = 3  # the order of rows
SEGMENTS_IN_ROW = 4  # the order of segments within a row
BLOCKS = 10  # the partition of each block of documents
DRAWING = 11  # the order in which the segments of a partition, or of the rest of several, are drawn
POOL_ROWS = 12  # the order of rows in a shard of the pool
HOLDOUT = 17  # the hash of a document's content, which decides whether it is held out

# the loader
ROW_ORDER = 5  # the order of rows in an epoch
MASKS = 6  # the tokens that a masked language model restores, and what replaces them

LANES = 14  # the lane of each shard
LANE_SHARDS = 15  # the order of the shards of a lane in an epoch
LANE_ROWS = 16  # the order of the rows in a window of a lane
COMBINED = 18  # a dataset that is combined with others, and its order of shards when its rows are used once more
COMBINED_ROWS = 19  # the order of the rows of a shard in such a dataset

# reports
SHOWN_ROWS = 13  # the rows that a report shows

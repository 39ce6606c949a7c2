"""Load packed datasets for training: rows by number, and batches in which documents do not attend to each other.

    dataset.py        rows by number, of a disk, object storage, or an index with its source
    open_shards.py    shards while they are mapped: columns of record batches as arrays
    cache/            shards of object storage, on the disk of the node
    index/            tokens of an index, from its source
    sampling/         orders of the rows, and the batches of each rank
    batching/         rows -> the batch of a trainer: collate, flatten and batches
    document_rows.py  documents of each row, for trainers that make their own examples
    loss.py           losses as means over tokens, sequences or documents
    schedule.py       effect of packing on batch size, steps and betas

Several of these use:

    row_segments.py   positions, labels and loss weights from segment boundaries
    draws.py          counter-based random bits

Requires NumPy and pyarrow; torch only to return tensors, obstore and xxhash only for object storage.
"""

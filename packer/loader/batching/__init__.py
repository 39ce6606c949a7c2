"""Rows, or raw examples, to the batch of a trainer.

Everything is NumPy until the last step, which turns arrays into tensors.

    collating.py        collate, flatten and batches, which a training loop calls
    batch_formats.py    one function for each trainer, with the options that it supports
    batch_shape.py      fixed shapes, for torch.compile
    token_masking.py    random masking of tokens
"""

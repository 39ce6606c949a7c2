"""Tests that documents of a row do not affect each other, in any training step and in models of transformers.

    probe_step.py   `packer.probe`: which documents leak into others in a training step
    check_model.py  `packer.check`: a step for each attention implementation of a model, probed, and a verdict

Importing this package imports neither torch nor transformers.
"""

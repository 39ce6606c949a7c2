"""Comparison of a packed dataset with its source, for `packer.pipeline.verifying`.

against_source.py       every document, token and label
segment_differences.py  first differences between documents and segments
recounting.py           totals of the manifest, counted again
"""

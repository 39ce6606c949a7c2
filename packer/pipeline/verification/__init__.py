"""Comparison of a packed dataset with its source, for `packer.pipeline.verifying`.

against_source.py       every document, token and label
packed_segments.py      segments of all rows in the order of their documents
segment_differences.py  first differences between documents and segments
recounting.py           totals of the manifest, counted again
"""

"""Documents cut into the segments that are packed.

packable_segments.py  cuts documents, by length, between turns and by their labels, and counts what becomes of each
segment_reader.py     segments of any range of documents
"""

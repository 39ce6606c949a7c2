"""A packed dataset as a source: its documents, taken out of the rows in the order of their numbers.

open_packed.py       opens it; refuses, or warns of, what the rows do not hold
packed_rows.py       rows of a packed dataset, mapped
segment_index.py     segments of all rows, sorted by document; verification reads these, too
packed_documents.py  the input, which puts the pieces of documents together, and yields these
"""

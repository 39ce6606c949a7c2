"""Documents cut into the segments that are packed.

segment_reader.py     segments of any range of documents
packable_segments.py  segments of all documents, and what becomes of each document
turns.py              cuts long chats between turns
untrained.py          finds segments without trained tokens
"""

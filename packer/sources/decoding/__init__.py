"""Inputs that cannot be mapped are decoded once, in parallel, to Arrow streams next to the output.

decoded_input.py    blocks of a reader to documents, which pass through steps
decoded_pieces.py   cuts inputs into pieces, each of which becomes a stream with a note; estimates their size
decode_pool.py      threads that decode
decoded_streams.py  writes the stream of a piece
spill.py            decodes an open source to one whose documents are mapped
"""

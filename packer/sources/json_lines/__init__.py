"""Tokenized documents in JSON lines, plain or compressed.

jsonl.py        the input, which yields documents
lines.py        files in blocks of whole lines; formats of text read them, too
json_blocks.py  a block of lines to Arrow, parsed by pyarrow
line_faults.py  what is wrong with a line; blocks without the lines that cannot be used
"""

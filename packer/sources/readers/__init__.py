"""Readers of input files, one module for each format; `packer/sources/formats.py` is the registry.

format_reader.py  the protocol of readers, and what they share
arrow_files.py    Arrow, which is decoded only if it cannot be mapped, or holds text
parquet.py        Parquet
json_lines.py     JSON lines, in blocks of whole lines
line_blocks.py    these blocks, plain or compressed, and single lines
json_blocks.py    a block to token lists; lines that cannot be used
json_arrays.py    one array of objects per file
csv_files.py      CSV
text_files.py     one document per file
"""

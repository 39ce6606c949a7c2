"""Text: records of files in any format, tokenized while they are read. `packer.text` turns a record into tokens.

text_source.py      the source
text_pairs.py       the same for preference pairs
usable_text.py      records encoded one by one, if one of a block cannot be used
text_records.py     the protocol of readers, one of which is in each of the following modules
text_files.py, json_records.py (JSON lines), json_arrays.py, csv_records.py, parquet_records.py, arrow_records.py
"""

"""Outputs that appear complete or not at all: packed datasets, tokenized datasets and exports.

unfinished_output.py  an output that this process has claimed, and the request that determines it
claim.py              claim an output in a folder or in object storage
replace_folder.py     replace a folder by a finished one, and complete replacements that were interrupted
"""

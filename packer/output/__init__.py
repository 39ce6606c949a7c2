"""Outputs that appear complete or not at all: packed datasets, tokenized datasets and exports.

job.py                name an output, and claim it for one process, a rank or a Ray cluster
claim.py              claim an output in a folder or in object storage
unfinished_output.py  an output that this process has claimed, and the request that began it
replace_folder.py     replace a folder by a finished one, and complete replacements that were interrupted
"""

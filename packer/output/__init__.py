"""Outputs that appear complete or not at all: packed datasets, tokenized datasets and exports.

output_place.py       name an output after its source, outside of it, and check that it fits on the disk
request.py            everything that determines an output, and what differs between two requests
unfinished_output.py  an output that this process has claimed
claim.py              claim an output in a folder or in object storage
job.py                claim a dataset for one process, a rank or a Ray cluster, with the engine that builds it
replace_folder.py     replace a folder by a finished one, and complete replacements that were interrupted
"""

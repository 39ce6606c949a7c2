"""Outputs that appear complete or not at all: packed datasets, tokenized datasets and exports.

output_kind.py     the kinds of output, and the files that belong to each
output_folder.py   claim a folder, write files into it, finish it
claim_folder.py    claim a folder, to begin or resume an output
replace_folder.py  replace a folder by a finished one, and complete replacements that were interrupted
packed_output.py   an unfinished packed dataset: committed shards, notes and decoded sources
request.py         the options and files of an output, and how two requests differ
unfinished_pack.py what packing needs of an unfinished packed dataset, in a folder or in object storage
stored_pack.py     an unfinished packed dataset in object storage
claim_pack.py      claim a packed dataset in a folder or in object storage
claim_append.py    claim a complete packed dataset, to append to it
join_generation.py move an appended generation into the dataset
tokenize_report.py the record of a tokenized dataset
"""

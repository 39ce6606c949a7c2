"""Output folders that appear complete or not at all: packed datasets, tokenized datasets and exports.

output_kind.py     the kinds of output, and the files that belong to each
output_folder.py   claim a folder, write files into it, finish it
replace_folder.py  replace a folder by a finished one, and complete replacements that were interrupted
packed_output.py   an unfinished packed dataset: committed shards, notes and decoded sources
request.py         the options and files of an output, and how two requests differ
tokenize_report.py the record of a tokenized dataset
"""

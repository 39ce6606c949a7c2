"""Output folders that appear whole or not at all: packed datasets, tokenized datasets and exports.

output_kind.py     the kinds of output, and the names of the files that belong to one
output_folder.py   claim a folder, write files into it, finish it
replace_folder.py  put a finished folder in the place of another, and finish what a kill left undone
packed_output.py   an unfinished packed dataset: committed shards, notes, decoded sources
request.py         what is asked for, and how what is there differs from it
tokenize_report.py the record of a tokenized dataset
"""

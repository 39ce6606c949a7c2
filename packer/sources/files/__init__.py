"""Finding and opening the files of a source, on a disk, in object storage or on the Hub.

file_search.py    files in a folder or by a glob
hugging_face.py   files or tables of saved datasets, `datasets` objects and the Hub
split_names.py    splits, which files belong to by their names
joined_paths.py   files of several paths, as one source
regular_files.py  refuses pipes, devices and sockets
file_access.py    opens a file: mapped, as a stream, or as Parquet
"""

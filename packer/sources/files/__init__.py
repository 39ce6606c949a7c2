"""Finding and opening the files of a source, on a disk, in object storage or on the Hub.

file_search.py   files in a folder, by a glob, in a split, or at several paths
hugging_face.py  files or tables of saved datasets, `datasets` objects and the Hub
file_access.py   opens a file: mapped, as a stream, or as Parquet; refuses pipes and devices
"""

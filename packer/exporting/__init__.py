"""A packed dataset in the files that another trainer reads: Parquet, with exactly that trainer's columns.

    targets.py  rows -> the columns of each trainer
    folder.py   a folder that appears whole or not at all
    writing.py  shards -> Parquet files, a shard at a time on each core

The columns are made by the functions that make the loader's batches, so that both train on the same values.
"""

from packer.exporting.targets import TARGETS
from packer.exporting.writing import COMPRESSIONS, Export, export

__all__ = ["COMPRESSIONS", "TARGETS", "Export", "export"]

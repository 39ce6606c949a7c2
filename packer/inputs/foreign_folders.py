"""Folders that other tools wrote and packer does not read: their marks, and commands that convert them."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import NamedTuple

from packer.errors import PackerError
from packer.inputs.documents import reading
from packer.stores import AnyPath, RemotePath

SIDE_FILES = {"dataset_info.json", "dataset_infos.json", "config.json", "manifest.json", "state.json"}
SIDE_FILES |= {"dataset_dict.json", "_export.json"}
"""Files that lie beside data, with the endings of data."""


class Foreign(NamedTuple):
    """A kind of folder. In the code that converts it, PATH is its path and NAME its name."""

    what: str
    marks: tuple[str, ...]  # names in it or, after a slash, in a folder in it
    words: tuple[bytes, ...]  # what a file that marks it must hold
    package: str  # that the code needs; if it is empty, the code is the remedy in words
    code: str


_PARQUET = 'import {}, pyarrow.dataset as d; d.write_dataset({}, "NAME-parquet", format="parquet")'.format
_SAVED = 'import {0}, datasets as d; d.Dataset.from_generator(lambda: {0}.{1}).save_to_disk("NAME-saved")'.format

# fmt: off
FOREIGN = tuple(Foreign(*each) for each in (
    ("a Delta table, whose log says which rows are deleted", ("_delta_log",), (), "deltalake", _PARQUET(
        "deltalake, pyarrow", 'pyarrow.RecordBatchReader.from_stream(deltalake.QueryBuilder().register("t", '
        'deltalake.DeltaTable("PATH")).execute("select * from t"))')),
    ("an Iceberg table, whose metadata says which rows are deleted", ("metadata/*.metadata.json",), (), "pyiceberg",
        _PARQUET("glob, pyiceberg.table", 'pyiceberg.table.StaticTable.from_metadata(max(glob.glob('
        '"PATH/metadata/*.metadata.json"), key=lambda name: (len(name), name))).scan().to_arrow_batch_reader()')),
    ("a Hudi table, whose timeline says which rows are replaced", (".hoodie",), (), "hudi",
        _PARQUET("hudi, os", 'hudi.HudiTable(os.path.abspath("PATH")).read()')),
    ("a Lance dataset, whose versions say which rows are deleted", ("_versions/*.manifest",), (), "pylance",
        _PARQUET("lance", 'lance.dataset("PATH").scanner().to_reader()')),
    ("a litdata dataset of tokens", ("index.json",), (b'"chunk_bytes"', b'"TokensLoader"'), "litdata",
        'import litdata, numpy; numpy.save("NAME.npy", numpy.fromiter(map(int, litdata.StreamingDataset("PATH", '
        'item_loader=litdata.TokensLoader(block_size=1))), "int32"))'),
    ("a litdata dataset", ("index.json",), (b'"chunk_bytes"',), "litdata",
        _SAVED("litdata", 'StreamingDataset("PATH")')),
    ("an MDS dataset", ("index.json",), (b'"shards"', b'"raw_data"'), "mosaicml-streaming",
        _SAVED("streaming", 'StreamingDataset(local="PATH", batch_size=1)')),
    ("a zarr store", (".zgroup", ".zarray", "zarr.json"), (), "zarr",
        'import zarr, numpy; a = zarr.open("PATH", mode="r"); numpy.save("NAME.npy", (a if "dtype" in dir(a) else '
        'a["input_ids"])[:])'),
    ("an unfinished output of Spark", ("_temporary",), (), "",
        "run its job again, or let it finish, which removes the folder _temporary and writes _SUCCESS"),
    ("an output of Spark's Structured Streaming, whose log says which files count", ("_spark_metadata",), (), "",
        'let Spark write what counts, by spark.read.parquet("PATH").write.parquet("NAME-parquet"), and pack that'),
))
# fmt: on
"""All kinds; the first that fits is named."""


def refuse_foreign(folder: AnyPath, names: Collection[str]) -> None:
    """Raise a PackerError for a folder of another tool, by the names of all that is in it."""
    for kind in FOREIGN:
        for first, _, inside in (mark.partition("/") for mark in kind.marks):
            if first in names and _holds(folder / first, inside, kind.words):
                place, before = (folder.name, "copy it here, and ") if isinstance(folder, RemotePath) else (folder, "")
                remedy = f"convert it by python -c '{kind.code}' (package {kind.package}), and pack what that writes"
                remedy = (remedy if kind.package else kind.code).replace("PATH", str(place))
                raise PackerError(f"{folder} is {kind.what}: {before}{remedy.replace('NAME', folder.name or 'data')}")


def _holds(path: AnyPath, inside: str, words: Collection[bytes]) -> bool:
    with reading(str(path)):
        if inside:
            return path.is_dir() and any(fnmatchcase(child.name, inside) for child in path.iterdir())
        if not words:
            return True
        with path.open("rb") as file:
            content = file.read(64 << 20)  # an index.json of data may be longer, but none of these is
    return all(word in content for word in words)

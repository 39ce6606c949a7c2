"""Write records to files of any format, or make a dataset in memory of them."""

import json
from pathlib import Path

import pyarrow as pa


def write_ipc(path: Path, table: pa.Table, *, stream=True, compression=None, rows=None) -> Path:
    """Write an Arrow stream, or a file, in record batches of some rows."""
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def write_lines(path: Path, records) -> Path:
    """Write records as JSON lines; strings are lines as they are."""
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("".join(line + "\n" for line in lines))
    return path


def write_as(path: Path, records, *, rows: int = 7):
    """Write records, or a table, in the format that the name says; return the source.

    Names: rows.arrow, rows.z.arrow (compressed), rows.parquet, rows.jsonl, dataset (saved) and table (in memory).
    """
    if path.name.endswith(".jsonl"):
        return write_lines(path, records)
    table = records if isinstance(records, pa.Table) else pa.Table.from_pylist(records)
    if path.name.endswith(".parquet"):
        import pyarrow.parquet as pq

        pq.write_table(table, path, row_group_size=rows)
    elif path.name.endswith(".arrow"):
        write_ipc(path, table, compression="zstd" if ".z." in path.name else None, rows=rows)
    else:
        import datasets

        made = datasets.Dataset(table)
        if path.name != "dataset":
            return made
        made.save_to_disk(path)
    return path

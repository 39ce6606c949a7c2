#!/usr/bin/env bash
# Expected: what pyarrow writes to Parquet, the same pyarrow reads back.
# Found: pyarrow 25 writes a column of fixed-size lists with a null among them, without an error, and cannot read its
#   own file: "Expected all lists to be of size=2". pyarrow 26 reads the same file, so the file is fine.
# Matters: the fault shows when the data is needed, often elsewhere and later; rows of a fixed length are what packed
#   data and embeddings are stored as. Lists of variable length have no such limit.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
cat > "$folder/finding.py" <<'END'
import sys

import pyarrow as pa
import pyarrow.parquet as pq

path, expected = sys.argv[1:]
column = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2))
if pa.__version__ == "25.0.0":
    pq.write_table(pa.table({"row": column}), path)
    print(f"pyarrow {pa.__version__} wrote {column.to_pylist()}")
try:
    found = str(pq.read_table(path)["row"].to_pylist())
except pa.ArrowInvalid as error:
    found = str(error)
print(f"pyarrow {pa.__version__} read: {found}")
if not found.startswith(expected):
    sys.exit(f"changed: used to begin with {expected}")
END
"$folder/bin/pip" install --quiet --no-compile pyarrow==25.0.0
"$folder/bin/python" "$folder/finding.py" "$folder/rows.parquet" 'Expected all lists to be of size=2'
"$folder/bin/pip" install --quiet --no-compile pyarrow==26.0.1
"$folder/bin/python" "$folder/finding.py" "$folder/rows.parquet" '[[1, 2], None, [3, 4]]'

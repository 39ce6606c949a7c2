#!/usr/bin/env bash
# Expected: an object in S3 appears as a whole or not at all: if the block that writes it ends with an exception, the
#   upload is given up.
# Found: leaving `with open_output_stream(...)` by an exception closes the stream, and closing completes the upload. The
#   bytes written so far stand under the final name, in place of the object that was there.
# Matters: a shard that was cut off in the middle cannot be told from a complete one by its presence, and the old one is
#   lost. Writers must write elsewhere, record sizes, or abort explicitly.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --no-compile pyarrow==26.0.1 'moto[s3,server]==5.2.5'
"$folder/bin/python" - <<'END'
import logging
import sys

import pyarrow as pa
from moto.server import ThreadedMotoServer
from pyarrow import fs

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
store = fs.S3FileSystem(
    access_key="example", secret_key="example", region="us-east-1", scheme="http", endpoint_override=f"{host}:{port}",
    allow_bucket_creation=True,
)
store.create_dir("bucket")
with store.open_output_stream("bucket/shard") as stream:
    stream.write(bytes(8_000_000))
before = store.get_file_info("bucket/shard").size
try:
    with store.open_output_stream("bucket/shard") as stream:
        stream.write(bytes(6_000_000))
        raise RuntimeError("the source of the other 2,000,000 bytes has failed")
except RuntimeError as error:
    print(f"raised: {error}")
after = store.get_file_info("bucket/shard").size
server.stop()
print(f"pyarrow {pa.__version__}: an object had {before:,} bytes before the failed write, and has {after:,} after it")
if (before, after) != (8_000_000, 6_000_000):
    sys.exit("changed: the failed write used to replace the object")
END

"""Made corpora for the benchmarks: random tokens in documents of log-normal lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

VOCABULARY = 150_000


def make_corpus(
    folder: Path, tokens: int, max_len: int, *, lengths_file: Path | None = None, labels: bool = True, power: int = 1
) -> int:
    """Save a dataset of about so many tokens as `datasets.save_to_disk` does; return how many there are.

    Args:
        folder: to be made.
        tokens: about how many.
        max_len: the longest document.
        lengths_file: a .npy file of lengths to be repeated, in place of log-normal ones.
        labels: whether there is a column of labels, equal to the tokens.
        power: 1: token ids are uniform; 3: small ones are far more frequent, as a tokenizer gives them.
    """
    random = np.random.default_rng(0)
    if lengths_file is None:
        lengths = np.minimum(random.lognormal(5.5, 1.0, tokens // 200).astype(np.int64) + 1, max_len)
    else:
        given = np.load(lengths_file).astype(np.int64)
        lengths = random.permutation(np.tile(given, int(tokens / given.sum()) + 1))
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), tokens))]
    folder.mkdir(parents=True)
    names = ("input_ids", "labels") if labels else ("input_ids",)
    schema = pa.schema({name: pa.list_(pa.int32()) for name in names})
    with pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        for first in range(0, len(lengths), 1000):
            offsets = np.concatenate([[0], np.cumsum(lengths[first : first + 1000])]).astype(np.int32)
            if power == 1:
                ids = random.integers(0, VOCABULARY, offsets[-1], dtype=np.int32)
            else:
                ids = (VOCABULARY * random.random(offsets[-1]) ** power).astype(np.int32)
            columns = [pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids)) for _ in names]
            stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text(
        '{"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": "0", "_format_columns": null, '
        '"_format_kwargs": {}, "_format_type": null, "_output_all_columns": false, "_split": null}'
    )
    return int(lengths.sum())

"""Writers of the files of tokens that other tools write, by their published layout alone."""

import csv
import gzip
import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}
"""Types of tokens in an `.idx`."""


def write_indexed(prefix: Path, documents: Sequence[Sequence[Sequence[int]]], dtype: str = "int32") -> Path:
    """Write documents, each a list of sequences, to `.bin` and `.idx`; return the path of the latter."""
    sequences = [tokens for document in documents for tokens in document]
    ends = [0, *accumulate(map(len, sequences))]
    firsts = [0, *accumulate(map(len, documents))]
    width = np.dtype(dtype).itemsize
    prefix.with_suffix(".bin").write_bytes(np.array([t for tokens in sequences for t in tokens], dtype).tobytes())
    path = prefix.with_suffix(".idx")
    path.write_bytes(
        b"MMIDIDX\0\0"
        + struct.pack("<QBQQ", 1, CODES[dtype], len(sequences), len(firsts))
        + b"".join(struct.pack("<i", len(tokens)) for tokens in sequences)
        + b"".join(struct.pack("<q", end * width) for end in ends[:-1])
        + b"".join(struct.pack("<q", first) for first in firsts)
    )
    return path


def write_datatrove(path: Path, documents: Sequence[Sequence[int]], dtype: str = "uint16") -> Path:
    """Write documents to `.ds` and `.ds.index`."""
    write_array(path, documents, dtype)
    ends = accumulate(map(len, documents))
    path.with_name(f"{path.name}.index").write_bytes(b"".join(struct.pack("<Q", end) for end in ends))
    return path


def in_one(documents: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    """Return documents of one sequence each."""
    return [[document] for document in documents]


def read_indexed(path: Path) -> list[list[int]]:
    """Return the documents of `.bin` and `.idx`, read number by number."""
    index, tokens = path.with_suffix(".idx").read_bytes(), path.with_suffix(".bin").read_bytes()
    magic, version, code, sequences, firsts = struct.unpack_from("<9sQBQQ", index)
    assert (magic, version) == (b"MMIDIDX\0\0", 1)
    dtype = np.dtype(next(name for name, number in CODES.items() if number == code))
    lengths, places, documents = (
        struct.unpack_from(f"<{count}{kind}", index, at)
        for count, kind, at in (
            (sequences, "i", 34),
            (sequences, "q", 34 + 4 * sequences),
            (firsts, "q", 34 + 12 * sequences),
        )
    )
    assert len(index) == 34 + 12 * sequences + 8 * firsts
    assert [*documents] == sorted(documents)
    assert (documents[0], documents[-1]) == (0, sequences)
    read = [np.frombuffer(tokens, dtype, *span).tolist() for span in zip(lengths, places, strict=True)]
    assert sum(lengths) * dtype.itemsize == len(tokens)
    return [[token for sequence in read[first:last] for token in sequence] for first, last in pairwise(documents)]


def write_array(path: Path, documents: Sequence[Sequence[int]], dtype: str = "uint16", header: bytes = b"") -> Path:
    """Write the tokens of documents one after the other, as flat arrays of OLMo and nanoGPT are."""
    path.write_bytes(header + np.array([token for tokens in documents for token in tokens], dtype).tobytes())
    return path


def write_lines_beside(path: Path, documents: Sequence[Sequence[int]]) -> None:
    """Write the `.csv.gz` that OLMo's tokenizer writes beside an array: start, end, id, source, and number."""
    ends = [0, *accumulate(map(len, documents))]
    lines = (f'{start},{end},"id, {start}",a.jsonl.gz,{number}\n' for number, (start, end) in enumerate(pairwise(ends)))
    path.with_suffix(".csv.gz").write_bytes(gzip.compress("".join(lines).encode()))


def read_datatrove(path: Path) -> list[list[int]]:
    """Return the documents of `.ds` and `.ds.index`, read number by number."""
    tokens, ends = path.read_bytes(), path.with_name(f"{path.name}.index").read_bytes()
    bounds = [0, *(end for (end,) in struct.iter_unpack("<Q", ends))]
    assert bounds == sorted(bounds)
    width = len(tokens) // bounds[-1]
    assert width in (2, 4)
    assert len(tokens) == width * bounds[-1]
    ids = np.frombuffer(tokens, f"<u{width}").tolist()
    return [ids[first:last] for first, last in pairwise(bounds)]


def read_lined(path: Path, count: int) -> list[tuple[int, list[int]]]:
    """Return (first token, tokens) of the documents of an array of uint16 with a `.csv.gz`, read line by line."""
    tokens = np.fromfile(path, "<u2").tolist()
    assert len(tokens) == count
    lines = csv.reader(gzip.decompress(path.with_suffix(".csv.gz").read_bytes()).decode("latin-1").splitlines())
    spans = [(int(start), int(end)) for start, end, *_ in filter(None, lines)]
    assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
    assert spans[-1][1] == count
    return [(start, tokens[start:end]) for start, end in spans]

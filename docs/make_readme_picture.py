"""The picture in the README: `python docs/make_readme_picture.py DATA` writes docs/pictures/padded-packed-*.svg.

It shows documents of T0, drawn at random, as rows that are padded to the longest of them, and as the rows that
`packer.pack` makes of them. DATA is the folder of test corpora (`PACKER_TEST_DATA`). Only lengths are in the picture.
"""

import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import datasets
import pyarrow.parquet as pq

import packer
from packer.report.charts import FONT, PALETTE, element

DOCUMENTS, SEED = 32, 0
WIDTH, PANEL, TOP, STEP, BAR = 760, 360, 40, 9, 7  # pixels
COLORS = ("blue", "orange", "green", "purple", "sky", "rose")
PICTURES = Path(__file__).parent / "pictures"

Row = list[tuple[int, int]]
"""(document, tokens) of each segment."""


def main(data: Path) -> None:
    """Pack the documents and write a light and a dark picture."""
    corpus = pq.read_table(data / "tokenized/t0_train_50k.parquet", columns=["input_ids"])["input_ids"]
    chosen = random.Random(SEED).sample(range(len(corpus)), DOCUMENTS)
    documents = [corpus[number].as_py() for number in chosen]
    longest = max(map(len, documents))
    with TemporaryDirectory() as folder:
        packer.pack(datasets.Dataset.from_dict({"input_ids": documents}), Path(folder, "rows"), max_len=longest)
        packed = [
            [(int(document), int(length)) for document, length in zip(row["doc_ids"], row["seq_lengths"], strict=True)]
            for row in packer.load(Path(folder, "rows"))
        ]
    padded = [[(number, len(tokens))] for number, tokens in enumerate(documents)]
    for theme, name in enumerate(("light", "dark")):
        picture = draw(padded, packed, longest, theme)
        (PICTURES / f"padded-packed-{name}.svg").write_text(picture)


def draw(padded: Sequence[Row], packed: Sequence[Row], longest: int, theme: int) -> str:
    """Return the picture; theme 0 is light, 1 is dark."""
    height = TOP + STEP * len(padded) + 4
    title = (
        f"{DOCUMENTS} documents in {len(padded)} padded rows of {longest:,} tokens: {padding(padded, longest):.0%} "
        f"padding; and in {len(packed)} packed rows: {padding(packed, longest):.0%} padding"
    )
    parts = [element("title", title)]
    for left, name, rows in ((0, "padded", padded), (WIDTH - PANEL, "packed", packed)):
        ink = PALETTE["ink"][theme]
        parts.append(element("text", f"{padding(rows, longest):.0%} padding", x=left, y=24, font_size=24, fill=ink))
        parts.append(element("text", f"{name}: {len(rows)} rows", x=left + 180, y=24, font_size=14, fill=ink))
        parts += draw_rows(rows, longest, left, theme)
    attributes = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {WIDTH} {height}", "width": WIDTH}
    return element("svg", *parts, **attributes, height=height, role="img", font_family=FONT) + "\n"


def draw_rows(rows: Sequence[Row], longest: int, left: int, theme: int) -> Iterator[str]:
    """Yield the boxes of rows: padding first, and the documents on top of it, each in the same color in both panels."""
    for number, row in enumerate(rows):
        y, at = TOP + STEP * number, 0
        yield element("rect", **box(left, y, longest, longest), fill=PALETTE["empty"][theme])
        for document, length in row:
            if document >= 0:
                color = PALETTE[COLORS[document % len(COLORS)]][theme]
                yield element("rect", **box(left + PANEL * at / longest, y, length, longest), fill=color)
            at += length


def box(x: float, y: int, length: int, longest: int) -> dict[str, object]:
    """Return the attributes of a box that is as wide as a document; a gap separates it from the next one."""
    return {"x": x, "y": y, "width": max(1.0, PANEL * length / longest - 1), "height": BAR}


def padding(rows: Sequence[Row], longest: int) -> float:
    """Return the share of the rows that is padding."""
    return 1 - sum(length for row in rows for document, length in row if document >= 0) / (len(rows) * longest)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

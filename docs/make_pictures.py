"""Pictures of a report in docs/pictures/: `python docs/make_pictures.py DATA`.

It needs Chromium and its driver, selenium and Pillow. DATA is the folder of test corpora (`PACKER_TEST_DATA`). Packed
datasets and pages are made in a temporary folder.
"""

import shutil
import sys
from base64 import b64decode
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from make_diagrams import picture
from PIL import Image
from selenium import webdriver

import packer
from packer.pipeline.collect_figures import packed_figures
from packer.report.page import SECTIONS, render_page

WIDTH = 960
PICTURES = Path(__file__).parent / "pictures"
SAVED = """
    const done = arguments[0], address = URL.createObjectURL, reader = new FileReader();
    reader.onload = () => done(reader.result);
    URL.createObjectURL = (picture) => { reader.readAsDataURL(picture); return address(picture); };
    document.getElementById("save").click();
"""
"""Script that returns the picture that the page saves, as a data URL."""


def main(data: Path) -> None:
    """Write the picture that the report of T0 saves, light and dark, and one of rows of trees."""
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    # Both are named: otherwise selenium looks for them, and for new versions on the network.
    options.binary_location = shutil.which("chromium")
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    with TemporaryDirectory() as folder:
        write_trees(data, Path(folder))
        packed = Path(folder, "t0-packed-4096")
        packer.pack(data / "tokenized/t0_train_50k.parquet", packed, max_len=4096)
        page = packed.with_suffix(".html")
        page.write_text(render_page(packed_figures(packed, for_report=True)))
        for theme in ("light", "dark"):
            saved_picture(browser, page, theme).save(PICTURES / f"report-{theme}.png", optimize=True)
    browser.quit()


def write_trees(data: Path, folder: Path) -> None:
    """Draw rows of chats whose answers are trees, as Qwen3's template renders them."""
    with pa.input_stream(str(data / "corpora" / "sgd_multiturn.jsonl.zst"), compression="zstd") as file:
        lines = file.read().splitlines()[:1200:60]
    (folder / "chats.jsonl").write_bytes(b"\n".join(lines))
    tokenizer = str(data / "tokenizers" / "qwen3")
    options = {"max_len": 2048, "tokenizer": tokenizer, "train_on": "each-answer", "share_prefixes": True}
    packer.pack(folder / "chats.jsonl", folder / "trees", **options)
    figures = packed_figures(folder / "trees", for_report=True)
    (PICTURES / "rows-trees.svg").write_text(picture(SECTIONS["rows"](figures).plot))


def saved_picture(browser: webdriver.Chrome, page: Path, theme: str) -> Image.Image:
    """Return the picture that a page of WIDTH pixels saves, in 64 colors."""
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    )
    size = {"width": WIDTH, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.as_uri())
    saved = b64decode(browser.execute_async_script(SAVED).partition(",")[2])
    return Image.open(BytesIO(saved)).convert("RGB").quantize(64, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

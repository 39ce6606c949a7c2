"""Pictures of reports in docs/pictures/: `python docs/make_pictures.py DATA`.

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
from PIL import Image
from selenium import webdriver

import packer
from packer.pipeline.collect_figures import packed_figures
from packer.report.page import render_page
from packer.report.page_sections import SECTIONS

CORPORA = {"t0": "t0_train_50k.parquet", "gsm8k": "gsm8k", "peps": "python_peps.arrow"}
WIDTH = 760
PICTURES = Path(__file__).parent / "pictures"


def main(data: Path) -> None:
    """Pack the corpora, and write a picture of each report and of its rows."""
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    # Both are named: otherwise selenium looks for them, and for new versions on the network.
    options.binary_location = shutil.which("chromium")
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    PICTURES.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        write_trees(data, Path(folder))
        for name, source in CORPORA.items():
            packed = Path(folder) / f"{name}-packed-4096"
            packer.pack(data / "tokenized" / source, packed, max_len=4096)
            figures = packed_figures(packed, for_report=True)
            (PICTURES / f"rows-{name}.svg").write_text(SECTIONS["rows"](figures).plot.file())
            page = packed.with_suffix(".html")
            page.write_text(render_page(figures))
            picture = Image.open(BytesIO(photographed(browser, page, dark=name == "gsm8k"))).convert("RGB")
            picture.quantize(128, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(
                PICTURES / f"report-{name}.png", optimize=True
            )
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
    (PICTURES / "rows-trees.svg").write_text(SECTIONS["rows"](figures).plot.file())


def photographed(browser: webdriver.Chrome, page: Path, *, dark: bool) -> bytes:
    """Return a PNG of the whole page, WIDTH pixels wide."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    size = {"width": WIDTH, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.as_uri())
    height = browser.execute_script("return document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1}
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    return b64decode(taken["data"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))

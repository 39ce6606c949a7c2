"""The report in a browser, at the widths of a desktop and of a phone."""

import json
import re
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.chromium import open_chromium, set_screen
from tests.helpers.commands import succeeded

PLOTS = ["rows", "lengths"]
HEADERS: dict[str, str] = {}
"""Headers that the server of the page sends beside its type."""


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> Path:
    """A packed dataset with labels."""
    folder = tmp_path_factory.mktemp("browser")
    draw = np.random.default_rng([2])
    tokens = [draw.integers(0, 1000, length).astype(np.int32) for length in draw.geometric(0.01, 1200)]
    labels = [np.where(np.arange(len(one)) % 40 < 20, -100, one).astype(np.int32) for one in tokens]
    source = folder / "web & <code>.parquet"
    pq.write_table(pa.table({"input_ids": tokens, "labels": labels}), source)
    succeeded("pack", source, "--max-len", 512, "-o", folder / "packed")
    succeeded("stats", folder / "packed", "--report", folder / "report.html")
    return folder / "packed"


@pytest.fixture(scope="module")
def address(packed) -> Iterator[str]:
    """Address of the page, from a server that answers nothing else."""
    page = packed.with_name("report.html").read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/report.html" else 404)
            for name, value in {"Content-Type": "text/html; charset=utf-8", **HEADERS}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/report.html"
        server.shutdown()


class Browser:
    """A browser with an open page."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str, *, width: int = 1000, dark: bool = False, scripts: bool = True) -> None:
        set_screen(self.driver, width)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not scripts})
        for log in ("browser", "performance"):
            self.driver.get_log(log)
        self.driver.get(address)
        while not scripts:  # then the driver does not wait for the end of the page
            entries = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
            if any(entry["method"] == "Page.loadEventFired" for entry in entries):
                break
            time.sleep(0.02)

    def js(self, code: str, *arguments: object) -> Any:
        return self.driver.execute_script(f"return {code}", *arguments)

    def messages(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        sent = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [one["params"]["request"]["url"] for one in sent if one["method"] == "Network.requestWillBeSent"]

    def point(self, x: float, row: int, *, click: bool = False) -> None:
        """Move the pointer to a row beside its number, at a share of its width."""
        box = self.js(
            "(() => { const plot = document.querySelector('.rows'), name = [...document.querySelectorAll('.plot text')]"
            ".find((text) => text.textContent === arguments[0]); name.scrollIntoView({block: 'center'});"
            " const rows = plot.getBoundingClientRect(), label = name.getBoundingClientRect();"
            " return [rows.left, rows.width, (label.top + label.bottom) / 2]; })()",
            f"{row:,}",
        )
        at = {"x": box[0] + x * box[1], "y": box[2]}
        kinds = ("mouseMoved", "mousePressed", "mouseReleased") if click else ("mouseMoved",)
        for kind in kinds:
            more = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": kind, **at, **more})

    def told(self) -> str:
        text: str = self.js("document.getElementById('segment').textContent")
        return text


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with open_chromium() as driver:
        yield driver


@pytest.fixture
def browser(driver) -> Browser:
    return Browser(driver)


@pytest.fixture
def headers() -> Iterator[dict[str, str]]:
    yield HEADERS
    HEADERS.clear()


def plots_of_size(browser: Browser) -> list[str]:
    """Names of the plots that take up space."""
    return browser.js(
        "[...document.querySelectorAll('svg[data-plot]')].filter((plot) => plot.getBoundingClientRect().width > 200"
        " && plot.getBoundingClientRect().height > 60).map((plot) => plot.dataset.plot)"
    )


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_has_its_plots_and_fits_without_a_message_or_a_request(browser, address, width, dark) -> None:
    browser.open(address, width=width, dark=dark)
    assert plots_of_size(browser) == PLOTS
    assert browser.js("document.documentElement.scrollWidth") <= width
    assert browser.messages() == []
    assert browser.requests() == [address]
    ink = browser.js("getComputedStyle(document.querySelector('.plot text')).fill")
    paper = browser.js("getComputedStyle(document.body).backgroundColor")
    lights = [sum(map(int, re.findall(r"\d+", color)[:3])) for color in (ink, paper)]
    assert (lights[0] > 600 and lights[1] < 150) if dark else (lights[0] < 150 and lights[1] > 600)


def test_it_opens_from_disk(browser, packed) -> None:
    address = packed.with_name("report.html").as_uri()
    browser.open(address)
    assert plots_of_size(browser) == PLOTS
    assert (browser.messages(), browser.requests()) == ([], [address])


def test_text_stays_within_the_page_on_a_phone(browser, address) -> None:
    browser.open(address, width=390)
    outside = browser.js(
        "[...document.querySelectorAll('.plot text, header *')].filter((text) => { const box ="
        " text.getBoundingClientRect(); return box.left < 0 || box.right > 390; })"
        ".map((text) => text.textContent)"
    )
    assert outside == []
    cut = browser.js(
        "[...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth)"
        ".map((box) => box.textContent)"
    )
    assert cut == []


def test_pointing_at_a_segment_names_it_and_a_click_keeps_it(browser, address, packed) -> None:
    from packer.pipeline.collect_figures import packed_figures

    rows = packed_figures(packed, for_report=True).shown_rows
    browser.open(address)
    for index, segment in ((0, 0), (5, 1), (len(rows) - 1, 0)):
        row = rows[index]
        middle = (sum(row.extents[:segment]) + row.extents[segment] / 2) / 512
        browser.point(middle, row.row)
        told = browser.told()
        length, trained = row.lengths[segment], row.trained[segment]
        assert told.startswith(f"Row {row.row:,}, segment {segment + 1} of {len(row.lengths)}: ")
        assert f"document {row.documents[segment]:,}, {length:,} token" in told
        assert f"{trained:,} trained ({100 * trained / length:.1f}%)" in told
    browser.point(0.01, rows[0].row, click=True)
    kept = browser.told()
    browser.point(0.5, rows[5].row)
    assert browser.told() == kept
    browser.js("document.querySelector('.rows').focus()")
    browser.js("document.querySelector('.rows').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}))")
    assert f"Row {rows[0].row:,}, segment 2 of " in browser.told()
    assert browser.messages() == []


def test_the_first_screen_has_three_cards_and_rows(browser, address) -> None:
    browser.open(address, width=1280)
    cards = browser.js("[...document.querySelectorAll('.card')].map((card) => card.getBoundingClientRect().bottom)")
    assert len(cards) == 3
    assert max(cards) < browser.js("document.querySelector('.rows').getBoundingClientRect().top") < 600


def test_the_head_is_saved_as_a_picture_of_what_is_seen(browser, address) -> None:
    browser.open(address, dark=True)
    saved = browser.driver.execute_async_script(
        "const done = arguments[0], address = URL.createObjectURL, reader = new FileReader();"
        " reader.onload = () => done(reader.result);"
        " URL.createObjectURL = (blob) => { reader.readAsDataURL(blob); return address(blob); };"
        " document.getElementById('save').click();"
    )
    image = pytest.importorskip("PIL.Image").open(BytesIO(b64decode(saved.removeprefix("data:image/png;base64,"))))
    assert image.width > 1200
    colors = {color[:3]: count / (image.width * image.height) for count, color in image.getcolors(1 << 20)}
    assert colors[20, 24, 29] > 0.3  # paper
    assert all(
        colors[color] > 0.02 for color in ((110, 168, 232), (61, 106, 156), (240, 160, 96))
    )  # documents, trained
    assert (230, 233, 238) in colors  # ink
    assert browser.messages() == []


def test_without_scripts_the_plots_and_a_table_are_there(browser, address) -> None:
    browser.open(address, scripts=False)
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert plots_of_size(browser) == PLOTS
    shown = [browser.js("document.getElementById(arguments[0]).hidden", each) for each in ("segment", "save")]
    assert shown == [True, True]
    assert browser.js("document.querySelectorAll('#rows details tbody tr').length") == 40
    assert browser.messages() == []


def test_under_a_policy_that_allows_nothing_plots_and_numbers_are_there(browser, address, headers) -> None:
    headers["Content-Security-Policy"] = "default-src 'none'"
    browser.open(address)
    assert plots_of_size(browser) == PLOTS
    blocked = browser.messages()
    assert blocked, "the server's policy is in force"
    assert all("violates the following Content Security Policy directive" in each for each in blocked)
    fills = browser.js(
        "[...document.querySelectorAll('.plot rect, .plot path')].map((shape) => getComputedStyle(shape).fill)"
    )
    assert len(set(fills) - {"none", "rgb(0, 0, 0)"}) >= 4
    assert browser.requests() == [address]


def test_on_paper_the_page_is_light(browser, address) -> None:
    browser.open(address, dark=True)
    browser.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]},
    )
    assert browser.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.js("getComputedStyle(document.querySelector('.plot text')).fill") == "rgb(31, 41, 51)"
    assert plots_of_size(browser) == PLOTS
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})

"""The documentation builds without a warning, broken links and references fail the build, and other links are right."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import packer
from tests.helpers.chromium import open_chromium, set_screen
from tests.helpers.design_page import names_in

ROOT = Path(__file__).parent.parent
OUTSIDE = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "findings/README.md"]
"""Pages outside docs/, which Sphinx does not build."""

FENCED = re.compile(r"^ *(`{3,}).*?^ *\1$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:href|src|srcset)=\"([^\"]+)\"")


def build(source: Path, output: Path) -> subprocess.CompletedProcess:
    """Build pages with the configuration of docs/, and every warning as an error."""
    pytest.importorskip("sphinx")  # of which no version for Python 3.10 is recent enough
    flags = ["-W", "-n", "--keep-going", "-q", "-E", "-c", ROOT / "docs", "-d", output / "doctrees"]
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *map(str, flags), str(source), str(output / "html")],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The process that built docs/, and the folder of the pages."""
    folder = tmp_path_factory.mktemp("site")
    return build(ROOT / "docs", folder), folder / "html"


def test_the_documentation_builds_without_a_warning(site):
    done, html = site
    assert done.returncode == 0, done.stderr
    built = {path.relative_to(html) for path in html.rglob("*.html")}
    for page in (ROOT / "docs").rglob("*.md"):
        assert page.relative_to(ROOT / "docs").with_suffix(".html") in built
    assert not done.stderr
    python = "".join(page.read_text() for page in (html / "reference/python").glob("*.html"))
    assert [name for name in packer.__all__ if f'id="packer.{name}"' not in python] == ["attention", "trainers"]
    assert [name for name in packer.attention.__all__ if f'id="packer.attention.{name}"' not in python] == [
        "IMPLEMENTATION"
    ]


@pytest.mark.nightly
def test_no_page_is_wider_than_a_phone(site):
    """Tables and code scroll within boxes of their own."""
    with open_chromium() as driver:
        set_screen(driver, 390)
        widths = {}
        for page in sorted(site[1].rglob("*.html")):
            driver.get(page.as_uri())
            widths[page.name] = driver.execute_script("return document.documentElement.scrollWidth")
    assert {name: width for name, width in widths.items() if width > 390} == {}


def test_a_button_copies_code_and_of_a_terminal_the_commands(site):
    copied = """
        const done = arguments[0], copied = [];
        navigator.clipboard.writeText = async (text) => { copied.push(text); };
        for (const button of document.querySelectorAll("button.copy")) button.click();
        setTimeout(() => done(copied));
    """
    page = (ROOT / "docs/tutorials/first-pack.md").read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert {language for language, _ in blocks} == {"bash", "console", "python"}
    with open_chromium() as driver:
        driver.get((site[1] / "tutorials/first-pack.html").as_uri())
        assert driver.execute_async_script(copied) == [
            "".join(line[2:] for line in code.splitlines(True) if line.startswith("$ "))
            if language == "console"
            else code
            for language, code in blocks
        ]


PLANTED = {
    "page": "[a page](no-such-page.md)",
    "heading": "[a heading](other.md#no-such-heading)",
    "own heading": "[a heading of this page](#no-such-heading)",
    "file": "[a file outside](../tests/no_such_file.py)",
    "picture": "![a picture](no-such-picture.svg)",
    "function": "{py:func}`packer.no_such_function`",
    "role": "{no-such-role}`text`",
    "type": "```{eval-rst}\n.. py:function:: named(value: NoSuchType)\n```",
}


def test_a_broken_link_or_reference_fails_the_build_and_others_are_built(tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (tmp_path / "README.md").write_text("# Read me\n")
    (tmp_path / "test_x.py").write_text("assert True\n")
    links = "[1](other.md#a-heading) [*2*](../README.md) [3](../test_x.py)"
    (docs / "index.md").write_text(f"# Index\n\n{links}\n\n```{{toctree}}\n:glob:\n*\n```\n")
    (docs / "other.md").write_text("# Other\n\n## A heading\n\n[a heading](#a-heading)\n")
    for name, planted in PLANTED.items():
        (docs / f"{name}.md").write_text(f"# Page\n\n{planted}\n")
    (docs / "docstring.md").write_text("# Page\n\n```{eval-rst}\n.. autofunction:: packer.no_such_function\n```\n")
    done = build(docs, tmp_path)
    assert done.returncode == 1
    assert "failed to import 'no_such_function'" in done.stderr  # without the name of the page
    warned = set(re.findall(r"docs/([\w ]+)\.md:\d*:? WARNING", done.stderr))
    assert warned == set(PLANTED), done.stderr
    page = (tmp_path / "html/index.html").read_text()
    assert 'href="other.html#a-heading"' in page
    downloads = re.findall(r'href="(_downloads/[^"]+)"', page)
    assert [Path(each).name for each in downloads] == ["README.md", "test_x.py"]
    for each in downloads:
        assert (tmp_path / "html" / each).is_file()


def test_the_readme_is_for_the_first_hour():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 110
    assert "LLM training and fine-tuning" in lines[2]
    links = [len(LINK.findall(line)) for line in lines]
    assert sum(links) <= 20
    assert not re.search(r"uvx|pipx|install [^.]*packer-llm", "\n".join(lines))  # it is on no index yet


def test_tests_that_pages_link_exist():
    linked = re.compile(r"\[`(\w+)`\]\(([./\w]*tests/\w+\.py)\)")
    found = [
        (page, test, page.parent / file)
        for page in (ROOT / "docs").rglob("*.md")
        for test, file in linked.findall(page.read_text())
    ]
    assert len(found) > 12
    assert [(page, test) for page, test, file in found if test not in names_in(file)] == []


MESSAGES = re.compile(r"^\| message.*\n\|---.*\n((?:\|.*\n)+)", re.MULTILINE)
"""Tables of messages, which their first column quotes."""


def in_code(message: str, code: str) -> bool:
    """Whether the message, or three of its consecutive words, stand in one literal; values in messages are examples."""
    words = message.replace("\\|", "|").split()
    return any(" ".join(words[at : at + 3]) in code for at in range(max(1, len(words) - 2)))


def test_messages_on_pages_are_those_of_the_code():
    code = "\n".join(
        " ".join(re.sub(r"%\w", "\n", node.value).split(" "))
        for path in (*(ROOT / "packer").rglob("*.py"), *(ROOT / "examples").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    quoted = [
        (page.name, message)
        for page in (ROOT / "docs").rglob("*.md")
        for table in MESSAGES.findall(page.read_text())
        for line in table.splitlines()
        for message in re.findall(r"`([^`]+)`", re.split(r"(?<!\\)\|", line)[1])
    ]
    assert len(quoted) > 80
    assert [message for message in quoted if not in_code(message[1], code)] == []
    assert not in_code("hub: there are 2 splits in this folder, please choose among them", code)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """Links of a page to files or headings that do not exist."""
    broken = []
    text = CODE.sub("", FENCED.sub("", page.read_text()))
    for target in (found[0] or found[1] for found in LINK.findall(text)):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    return broken


def test_links_lead_somewhere_as_github_shows_them():
    pages = [*(ROOT / name for name in OUTSIDE), *(ROOT / "docs").rglob("*.md")]
    assert {page: broken for page in pages if (broken := broken_links(page))} == {}


def test_a_broken_link_outside_docs_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A page: `code`, and more\n\n[1](page.md) [2](#a-page-code-and-more) [3](no.md) [4](page.md#no) [5](#no)\n"
        '<picture><source srcset="no.svg"><img src="page.md"></picture> [6](https://example.org) `[7](no)`\n'
        "```text\n[8](no)\n```\n"
    )
    assert broken_links(page) == ["no.md", "page.md#no", "#no", "no.svg"]
    shutil.copy(page, tmp_path / "no.md")
    assert broken_links(page) == ["page.md#no", "#no", "no.svg"]

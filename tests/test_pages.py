"""Every shell and Python block of README and docs/ runs; `tests/helpers/page_blocks.py` says how."""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("sybil")
pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

import packer  # noqa: E402
from packer.cli.writing_commands import write_corpus  # noqa: E402
from tests.helpers import page_blocks  # noqa: E402  these need the packages
from tests.helpers.commands import succeeded  # noqa: E402
from tests.helpers.page_blocks import ROOT, commands_in, languages, marked, pages, run_page, same_output  # noqa: E402
from tests.helpers.page_data import write_page_data  # noqa: E402
from tests.helpers.writing import write_lines  # noqa: E402

NOT_RUN = 30
"""Number of blocks that are marked as not run: whoever adds one says so here."""

NEED_DATA = 1
"""Number of blocks that run with PACKER_TEST_DATA only."""

NEEDS = ("the Hub", "a GPU", "another trainer", "a cluster", "a bucket")
REASONS = (*(f"needs {what}" for what in NEEDS), "installs packages")
"""What the reason of such a mark begins with."""

CONTINUED = {"docs/tutorials/train.md": "docs/tutorials/first-pack.md"}
"""Pages that start from the folder of another; they run in one test."""


BY_NIGHT = {"images.md", "each-answer.md", "input-formats.md", "several-machines.md", "mixtures.md", "what-leaks.md"}
"""Pages that take long, and whose commands have tests of their own: they run with --nightly only."""


@pytest.fixture(scope="session")
def page_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page_data")
    write_page_data(folder)
    return folder


@pytest.fixture(scope="session")
def write_corpus_once(tmp_path_factory):
    """Function that does what `write_corpus` of `packer demo` does, by a copy from the second page on."""
    made = tmp_path_factory.mktemp("demo")

    def write(folder):
        if not any(made.iterdir()):
            write_corpus(made)
        shutil.copytree(made, folder, dirs_exist_ok=True)
        return folder / "stdlib.arrow"

    return write


def name_of(page) -> str:
    return page.relative_to(ROOT).as_posix()


def with_blocks() -> list[str]:
    """Pages to start from that have something to run."""
    found = [name_of(page) for page in pages() if set(languages(page)) & set(page_blocks.RUN)]
    return [name for name in found if name not in CONTINUED]


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.nightly] * (Path(name).name in BY_NIGHT)) for name in with_blocks()],
)
def test_the_blocks_of_a_page_run(name, page_data, write_corpus_once, tmp_path, monkeypatch):
    shutil.copytree(page_data, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("packer.cli.writing_commands.write_corpus", write_corpus_once)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    for page in (name, *(page for page, start in CONTINUED.items() if start == name)):
        run_page(ROOT / page)


TABLE = ROOT / "docs/tutorials/train.md"
PACKED_FIRST = (
    "packer pack web --max-len 1024",
    "packer pack code --max-len 1024",
    "packer pack chats.jsonl --tokenizer Qwen/Qwen3-0.6B --max-len 1024",
    "packer pack weighted.jsonl --max-len 1024",
)
"""Commands before the lines of the table on the page "Train"."""


@pytest.mark.nightly
@pytest.mark.usefixtures("no_gpu")
@pytest.mark.filterwarnings("ignore:no token of a batch is trained:UserWarning")
def test_every_line_to_type_runs(page_data, tmp_path, monkeypatch):
    shutil.copytree(page_data, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "weighted.jsonl", [{"input_ids": [1, 2, 3], "loss_weights": [0, 0.5, 2]}])
    section = TABLE.read_text().partition("## What you want, and the line to type")[2].partition("\n## ")[0]
    rows = re.findall(r"(?m)^\| (?!you want)(?!-).*\|$", section)
    lines = [re.findall(r"`([^`]+)`", row.split(" | ")[1]) for row in rows]
    assert len(lines) > 5
    assert all(len(each) == 1 for each in lines), "a line to type in each row"
    for (line,) in [*([each] for each in PACKED_FIRST), *lines]:
        if line.startswith("packer "):
            succeeded(*shlex.split(line)[1:])
            continue
        state = packer.BatchSampler(packer.load("web-packed-1024"), global_batch=4).state_dict()
        if isinstance(found := eval(line, {"packer": packer, "state": state}), Iterator):
            assert next(found)


def test_no_block_is_left_out_silently():
    reasons = [reason for page in pages() for reason in marked(page, "not run")]
    assert len(reasons) == NOT_RUN
    assert [reason for reason in reasons if not reason.startswith(REASONS)] == []
    assert sum(len(marked(page, "needs data")) for page in pages()) == NEED_DATA


def test_no_command_hides_in_an_indented_block():
    hidden = re.compile(r"\n\n {4,}((?:\$|>>>|packer|python|pip) (?!.*\[OPTIONS\]).*)")
    for page in pages():
        assert not hidden.findall(re.sub(r"(?ms)^ *(```+).*?^ *\1$", "", page.read_text())), page


def test_every_block_names_a_language_that_is_known():
    for page in pages():
        for language in languages(page):
            is_directive = re.fullmatch(r"\{[\w-]+\}.*", language)
            assert is_directive or language in (*page_blocks.RUN, *page_blocks.SHOWN), f"{page}: {language!r}"


def page_of(tmp_path, monkeypatch, text: str):
    """A page of our own, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(page_blocks, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(text)
    return page


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ("```bash\nfalse\n```\n", "exited with 1, not 0"),
        ("```bash\npacker pack no-such-file --max-len 64\n```\n", "exited with 1, not 0.*no-such-file"),
        ("<!-- exits with 2 -->\n```bash\npacker --version\n```\n", "exited with 0, not 2"),
        ("```console\n$ packer --version\nanother line\n```\n", "printed.*Python.*The page has.*another line"),
        ("```console\n$ echo 17\n18\n```\n", "printed.*17.*The page has.*18"),
        ("<!-- numbers vary -->\n```console\n$ echo 17 rows\n18 documents\n```\n", "printed.*17 rows"),
        ("```python\nassert 1 == 2\n```\n", "AssertionError"),
        ("```python\n>>> 1 + 1\n3\n```\n", "Expected:.*3.*Got:.*2"),
        ("- an item\n\n  ```python\n  undefined\n  ```\n", "NameError"),
    ],
)
def test_a_block_that_is_wrong_fails(block, words, tmp_path, monkeypatch):
    with pytest.raises(AssertionError, match=rf"(?s)page\.md, line \d+: .*{words}"):
        run_page(page_of(tmp_path, monkeypatch, f"# Page\n\n{block}"))


def test_marks_do_what_they_say(tmp_path, monkeypatch):
    page = page_of(
        tmp_path,
        monkeypatch,
        "<!-- before: touch made -->\n"
        "<!-- not run: needs the Hub -->\n```bash\nfalse\n```\n"
        "<!-- exits with 1 -->\n```bash\npacker pack no-such-file --max-len 64  # a comment\n```\n"
        "<!-- file: folder/pack.toml -->\n```toml\nmax_len = 64\n```\n"
        "<!-- needs data: no/such/file.parquet -->\n```bash\nfalse\n```\n"
        "<!-- numbers vary -->\n```console\n$ echo 17 rows in 3.25 s\n1,218 rows in 1.00 s\n```\n"
        "```console\n$ cat folder/pack.toml && ls m*\nmax_len = ...\nmade\n```\n"
        "```bash\necho \\\n  one > two\n```\n"
        "```console\n$ packer \\\n    --version\npacker ...\n```\n"
        "```python\nfrom pathlib import Path\n```\n"
        "```python\nassert Path('two').read_text() == 'one\\n'\n```\n",
    )
    run_page(page)
    assert marked(page, "not run") == ["needs the Hub"]


def test_output_is_compared():
    assert same_output("4 rows in 0.12 s\n", "4 rows in 3.50 s", numbers=True)
    assert not same_output("4 rows in 0.12 s", "5 rows in 0.12 s", numbers=True)
    assert same_output("  4 rows\n 12,000 tokens", "400 rows\n  1.5 tokens", numbers=False)
    assert same_output("a\n...\nd", "a\nb\nc\nd", numbers=True)
    assert not same_output("a (b)", "a b", numbers=True)
    assert commands_in("$ a \\\n  b\n1\n2\n$ c\n") == [("a \\\n  b\n", "1\n2\n"), ("c\n", "")]

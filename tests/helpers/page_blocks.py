"""Runs the code blocks of README and docs/: `run_page(page)`.

A page runs in a folder that holds what `page_data.py` writes. Its Python blocks share names, as cells of a
notebook do. Commands that start with `packer` or `python examples/` run in this process, others in bash; each must exit
with 0. In a `console` block, lines after a command are its output, and compared; "..." stands for anything.

A comment on a line before a block changes that:

    <!-- not run: needs the Hub -->         not run; `tests/test_pages.py` counts these
    <!-- numbers vary -->                   the output is compared, but not the numbers in it
    <!-- output varies -->                  only the first line of the output is compared, without numbers
    <!-- exits with 1 -->                   the last command fails, with this code
    <!-- file: pack.toml -->                the block is the content of a file, which is written
    <!-- needs data: tokenized/x.parquet -->    a file of PACKER_TEST_DATA, linked into the folder; not run without it

and elsewhere, `<!-- before: packer pack dataset --max-len 4096 -->` runs a command whose output the page starts from.
"""

import os
import re
import shlex
import subprocess
import sys
from doctest import ELLIPSIS
from importlib import import_module
from pathlib import Path

from click.testing import CliRunner
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser

from packer.cli import cli

ROOT = Path(__file__).parents[2]

RUN = ("bash", "console", "python")
SHOWN = ("jinja", "json", "jsonl", "text", "toml", "yaml")
"""Languages of blocks: those that are run, and those that have nothing to run."""

FENCE = re.compile(r"^ *(`{3,})(.*)$", re.MULTILINE)
COMMENTS = re.compile(r"(?: *<!-- .* -->\n)+ *\Z")
MARK = re.compile(r"<!-- (not run|numbers vary|output varies|exits with|file|needs data):? ?(.*?) -->")
BEFORE = re.compile(r"<!-- before: (.*?) -->")
SHELL_SYNTAX = re.compile(r"[|&;<>$`*?(){}!]")


def pages() -> list[Path]:
    """README and the pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def languages(page: Path) -> list[str]:
    """The languages of the page's fenced blocks; "" where none is named."""
    found, open_fence = [], None
    for fence, language in FENCE.findall(page.read_text()):
        if open_fence is None:
            found.append(language.strip())
            open_fence = fence
        elif len(fence) >= len(open_fence) and not language.strip():
            open_fence = None
    return found


def mark_of(text: str, start: int) -> tuple[str, str]:
    """(kind, value) of a mark in the comments on the lines before `start`; two empty strings if there is none."""
    comments = COMMENTS.search(text[:start])
    found = MARK.search(comments[0]) if comments else None
    return (found[1], found[2]) if found else ("", "")


def marked(page: Path, kind: str) -> list[str]:
    """The values of the page's marks of this kind."""
    return [
        value
        for found, value in re.findall(r"^ *<!-- ([\w ]+?): (.*?) -->$", page.read_text(), re.MULTILINE)
        if found == kind
    ]


def run_page(page: Path) -> None:
    """Run the blocks of a page in the current folder.

    Raises:
        AssertionError: a command failed, or its output is another; the message names the page and the line.
    """
    for command in BEFORE.findall(page.read_text()):
        output, code = run_command(command)
        assert code == 0, f"{page}: before: {command}\n{output}"
    parsers = [
        PythonCodeBlockParser(doctest_optionflags=ELLIPSIS),
        CodeBlockParser("bash", _run_bash),
        CodeBlockParser("console", _run_console),
        *(CodeBlockParser(language, _write_file) for language in SHOWN),
    ]
    for example in Sybil(parsers).parse(page).examples():
        kind, value = mark_of(example.document.text, _line_start(example))
        if kind == "not run" or (kind == "needs data" and not _link_data(value)):
            continue
        try:
            example.evaluate()
        except Exception as error:
            raise AssertionError(f"{page.relative_to(ROOT)}, line {example.line}: {error!r}\n{error}") from error


def run_command(command: str) -> tuple[str, int]:
    """Run a command; return what it printed, with lines on stderr in their place, and its exit code."""
    command = command.replace("\\\n", " ")
    words = shlex.split(command, comments=True)
    if not words:
        return "", 0
    if words[:3] == ["python", "-m", "packer"]:
        words = ["packer", *words[3:]]
    plain = not SHELL_SYNTAX.search(re.sub("'[^']*'", "", command)) and "=" not in words[0]
    if plain and words[0] == "packer":
        return _invoked(cli, words[1:], prog_name="packer")
    if plain and words[0] == "python" and re.fullmatch(r"examples/\w+\.py", words[1]):
        return _invoked(import_module(words[1][:-3].replace("/", ".")).main, words[2:])
    # `packer` and `python` are those of this environment and this checkout
    paths = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f'packer() {{ python -m packer "$@"; }}\n{command}'],
        env={**os.environ, **paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout, done.returncode


def commands_in(block: str) -> list[tuple[str, str]]:
    """(command, expected output) of a console block; its commands begin with "$ ", and may go on after a backslash."""
    found: list[tuple[str, str]] = []
    for line in block.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif found and not found[-1][1] and found[-1][0].endswith("\\\n"):
            found[-1] = (found[-1][0] + line, "")
        else:
            assert found, f"a console block begins with a command after '$ ', not {line!r}"
            found[-1] = (found[-1][0], found[-1][1] + line)
    return found


def same_output(expected: str, printed: str, *, numbers: bool) -> bool:
    """Compare output: "..." stands for anything, and a number of seconds for any other.

    Args:
        expected: output on the page.
        printed: output of the command.
        numbers: compare numbers, too. Without, spaces count once, because columns are as wide as their numbers.
    """
    expected, printed = (
        _without_seconds("\n".join(map(str.rstrip, text.strip().splitlines()))) for text in (expected, printed)
    )
    if not numbers:
        expected, printed = (re.sub(r"[ ─]+", " ", re.sub(r"\d[\d,.]*", "N", text)) for text in (expected, printed))
    pattern = ".*?".join(map(re.escape, expected.split("...")))
    return re.fullmatch(pattern, printed, re.DOTALL) is not None


def _without_seconds(text: str) -> str:
    text = re.sub(r", [\w. ]+ s of it compiling", "", text)  # only where kernels were not in the cache
    return re.sub(r"\b(\d+ min )?\d+(\.\d+)? s\b", "N s", text)


def _run_bash(example: Example) -> None:
    block = str(example.parsed)
    if "<<" in block or re.search(r"^(for|if|while) ", block, re.MULTILINE):
        commands = [block]
    else:
        commands = block.replace("\\\n", " ").splitlines()
    for number, command in enumerate(commands, 1):
        _run_checked(example, command, is_last=number == len(commands))


def _run_console(example: Example) -> None:
    commands = commands_in(str(example.parsed))
    kind, _ = mark_of(example.document.text, _line_start(example))
    for number, (command, expected) in enumerate(commands, 1):
        output = _run_checked(example, command, is_last=number == len(commands))
        if kind == "output varies":
            expected, output = (text.split("\n", 1)[0] for text in (expected, output))
        same = same_output(expected, output, numbers=kind not in ("numbers vary", "output varies"))
        assert same, f"{command}printed\n\n{output}\nThe page has\n\n{expected}"


def _run_checked(example: Example, command: str, *, is_last: bool) -> str:
    """Run a command and check its exit code; return its output."""
    kind, value = mark_of(example.document.text, _line_start(example))
    output, code = run_command(command)
    expected = int(value) if kind == "exits with" and is_last else 0
    assert code == expected, f"{command.strip()}: exited with {code}, not {expected}:\n{output}"
    return output


def _write_file(example: Example) -> None:
    kind, value = mark_of(example.document.text, _line_start(example))
    if kind == "file":
        Path(value).parent.mkdir(parents=True, exist_ok=True)
        Path(value).write_text(str(example.parsed))


def _line_start(example: Example) -> int:
    """Where the line begins on which the block opens."""
    return example.document.text.rfind("\n", 0, example.region.start) + 1


def _link_data(name: str) -> bool:
    """Link a file of PACKER_TEST_DATA into the current folder; whether it is there."""
    folder = os.environ.get("PACKER_TEST_DATA")
    file = Path(folder or "/nonexistent", name)
    if not file.exists():
        return False
    if not Path(file.name).exists():
        Path(file.name).symlink_to(file)
    return True


def _invoked(command, arguments: list[str], **settings: str) -> tuple[str, int]:
    result = CliRunner().invoke(command, arguments, **settings)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output, result.exit_code

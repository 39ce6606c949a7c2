"""The messages that pages quote under "What can go wrong" are in the code."""

import ast
import re

import pytest

from tests.page_blocks import ROOT

HEADING = "## What can go wrong"
QUOTED = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)
WORDS = 3
"""Consecutive words of a message that must stand in one literal of the code."""


def literals() -> str:
    """All strings in the code, one a line; the values in an f-string end a line."""
    found = []
    for path in (*(ROOT / "packer").rglob("*.py"), *(ROOT / "examples").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(" ".join(re.sub(r"%\w", "\n", node.value).split(" ")))
    return "\n".join(found)


def is_quoted(message: str, code: str) -> bool:
    """Whether some consecutive words of a message stand in the code."""
    words = message.replace("\\|", "|").split()
    runs = (" ".join(words[at : at + WORDS]) for at in range(len(words) - WORDS + 1))
    return any(run in code for run in runs)


@pytest.fixture(scope="module")
def code():
    return literals()


PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if HEADING in page.read_text()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_messages_on_pages_are_those_of_the_code(page, code):
    messages = QUOTED.findall(page.read_text().split(HEADING, 1)[1])
    assert messages
    assert not [message for message in messages if not is_quoted(message, code)]


def test_a_message_that_is_not_in_the_code_is_found(code):
    assert is_quoted("hub: its files form 2 splits (train, test); choose one, as in --split train", code)
    assert not is_quoted("hub: there are 2 splits in this folder, please choose among them", code)

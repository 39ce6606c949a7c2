"""What `tests/test_replace_folder.py` shares with other tests."""

import contextlib
import os
from pathlib import Path

import pytest

from packer.output import replace_folder
from tests.helpers.from_text import tokenizer  # noqa: F401 (a fixture)
from tests.helpers.kills import Killed


@contextlib.contextmanager
def killed_at(number: int):
    """Raise `Killed` before the operation with this number on folder entries, and before every later one.

    The last operations on an output are the renames and removals of its swap.
    """
    count = 0

    def striking(usual):
        def struck(*arguments, **options):
            nonlocal count
            count += 1
            if count > number:
                raise Killed
            return usual(*arguments, **options)

        return struck

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replace_folder, "exchange", striking(replace_folder.exchange))
        for name in ("rename", "replace", "unlink"):
            patch.setattr(Path, name, striking(getattr(Path, name)))
        for name in ("unlink", "rmdir"):  # of shutil.rmtree, one by one
            patch.setattr(os, name, striking(getattr(os, name)))
        yield

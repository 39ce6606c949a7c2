"""The first hour where nothing is prepared: README's own lines, in a copy of the checkout and a new environment.

It needs a package index. torch, which takes gigabytes, is that of this environment.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.helpers.page_data import write_page_data

ROOT = Path(__file__).parent.parent

BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_readme_works_word_by_word_where_nothing_is_installed(tmp_path):
    pytest.importorskip("torch")
    checkout, folder, elsewhere = (tmp_path / name for name in ("checkout", "data", "elsewhere"))
    folder.mkdir()
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(".*", "__pycache__", "_build", "build", "dist"))
    write_page_data(folder)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment |= {"PATH": f"{sys.base_prefix}/bin:{os.defpath}", "HF_HUB_OFFLINE": "1"}
    environment |= {name: str(tmp_path / "kernels") for name in ("PACKER_CACHE_DIR", "NUMBA_CACHE_DIR")}
    activated = f". {checkout}/.venv/bin/activate"

    def run(script: str, folder: Path = folder) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout[-9000:]}"
        return done.stdout

    (_, install), *blocks = BLOCK.findall((ROOT / "README.md").read_text())
    printed = run(install, checkout)
    assert "is verified: hashes, structure and every token" in printed
    assert "Padding: " in printed
    (packages,) = (checkout / ".venv" / "lib").glob("python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_paths()["purelib"])  # after its own packages
    for language, block in blocks[:-1]:  # the last line is for those who develop packer
        run(f"{activated}\n{block}" if language == "bash" else f"{activated}\npython - <<'END'\n{block}\nEND")

    shutil.copytree(checkout / "tests", elsewhere / "tests")  # so that packer is the one that was installed
    shutil.copy(checkout / "pyproject.toml", elsewhere)
    tests = "tests/test_first_hour.py tests/test_notebooks.py"
    run(f"{activated}\npython -m pytest -q -p no:cacheprovider {tests}", elsewhere)

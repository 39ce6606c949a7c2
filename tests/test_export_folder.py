"""The folder of an export, written by several processes at once or left by a killed one."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import packer
from packer import PackerError
from packer.exporting.write_export import RECORD
from packer.output import replace_folder
from packer.output.replace_folder import sibling
from tests.helpers.exporting import beside, read

ROOT = Path(__file__).parent.parent


def is_complete(out: Path) -> bool:
    """Whether an export has exactly the files of its record."""
    record = json.loads((out / RECORD).read_text())
    names = {RECORD, *(file["file"] for file in record["files"]), *record["small_files"]}
    return {path.name for path in out.iterdir()} == names


@pytest.mark.parametrize("exchanges", [True, False])
def test_an_export_that_begins_while_the_old_one_is_deleted_is_refused(packed, tmp_path, monkeypatch, exchanges):
    out, rmtree, refusals = tmp_path / "out", shutil.rmtree, []
    packer.export(packed, out, to="parquet")

    def delete_slowly(path, **options):
        if not refusals:
            with pytest.raises(PackerError, match="out is being written by another packer: wait for it") as refusal:
                packer.export(packed, out, to="torchtune", overwrite=True)
            refusals.append(refusal)
        rmtree(path, **options)

    if not exchanges:
        monkeypatch.setattr(replace_folder, "exchange", lambda *_: False)
    monkeypatch.setattr(shutil, "rmtree", delete_slowly)
    packer.export(packed, out, to="maxtext", overwrite=True)
    assert refusals
    assert is_complete(out)
    assert "inputs_segmentation" in read(out)[0]
    assert not beside(out)


SLOWLY = """
import os, sys, time
import packer
unlink = os.unlink
def slow(*arguments, **options):
    time.sleep(0.02)
    unlink(*arguments, **options)
os.unlink = slow
try:
    packer.export(sys.argv[1], sys.argv[2], to=sys.argv[3], overwrite=True, sync=False)
except packer.PackerError as error:
    sys.exit(str(error))
"""


def test_many_processes_at_once_leave_a_complete_export(packed, tmp_path):
    out = tmp_path / "out"
    packer.export(packed, out, to="parquet")
    targets = ["megatron", "torchtune", "maxtext"]
    commands = [[sys.executable, "-c", SLOWLY, str(packed), str(out), target] for target in targets]
    running = [
        subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)  # the package as it is tested
        for command in commands
    ]
    errors = [process.communicate()[1] for process in running]
    assert 0 in {process.returncode for process in running}, errors
    for process, line in zip(running, errors, strict=True):
        assert process.returncode == 0 or "is being written by another packer" in line
    assert is_complete(out)
    assert not beside(out)


def test_a_link_with_the_name_of_the_hidden_folder_is_not_followed(packed, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    sibling(tmp_path / "out", "export").symlink_to(tmp_path / "mine")
    packer.export(packed, tmp_path / "out", to="parquet")
    assert is_complete(tmp_path / "out")
    assert (tmp_path / "mine" / "thesis.tex").exists()

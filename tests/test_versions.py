"""The lowest versions that pyproject.toml allows, and the newest, installed in new environments without torch."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ZSTD = "backports.zstd; python_version < '3.14'"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("resolution", ["lowest-direct", "highest"])
def test_the_fast_lane_passes_with_all_versions_that_are_allowed(tmp_path, resolution):
    uv = pytest.importorskip("uv").find_uv_bin()
    if resolution == "lowest-direct" and sys.version_info >= (3, 13):
        pytest.skip("there are no wheels of the lowest versions for this Python")
    environment, python = tmp_path / "environment", tmp_path / "environment" / "bin" / "python"

    def run(*command: object) -> str:
        own = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
        done = subprocess.run([*map(str, command)], cwd=ROOT, env=own, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-9000:] + done.stderr[-9000:]
        return done.stdout

    run(uv, "venv", "--python", sys.executable, environment)
    run(uv, "pip", "install", "--python", python, "--resolution", resolution, ROOT)
    run(environment / "bin" / "packer-llm", "demo", "--output", tmp_path / "demo")
    assert "torch is not installed" in run(python, "-m", "packer", "--version")
    run(uv, "pip", "install", "--python", python, "pytest", "hypothesis", "sybil", "pillow", ZSTD)
    run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "@tests/fast.txt")


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.14", "3.15"])
def test_the_demo_and_the_fast_lane_pass_on_pythons_that_this_machine_lacks(version):
    if os.getuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("needs root and debootstrap")
    command = [ROOT / "tests" / "run_on_python.sh", version]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-9000:] + done.stderr[-9000:]

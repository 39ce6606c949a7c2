"""flash-attn's own code runs on the CPU, in an environment that the test builds over that of the tests."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = Path(__file__).parent.parent
BUILD = {f"FLASH_ATTENTION_{name}": "TRUE" for name in ("FORCE_BUILD", "SKIP_CUDA_BUILD", "TRITON_AMD_ENABLE")}
INTERPRETER = {"FLASH_ATTENTION_TRITON_AMD_ENABLE": "TRUE", "TRITON_INTERPRET": "1"}

pytestmark = [pytest.mark.nightly, pytest.mark.slow]


def run(*command: object, **changes: str) -> str:
    done = subprocess.run(
        [*map(str, command)], cwd=ROOT, env=os.environ | changes, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-9000:] + done.stderr[-9000:]
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """Python with flash-attn, the packages that its interpreter needs, and all others of this one."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder)
    found = folder / "bin" / "python"
    site = run(found, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    (Path(site) / "others.pth").write_text(sysconfig.get_path("purelib"))
    install = (found, "-m", "pip", "install", "--no-deps")
    # Triton 3.9 and NumPy 2.4 fail in the interpreter
    run(*install, "numpy<2.3", "triton==3.4.0", "einops", "ninja", "wheel", "setuptools<80")
    run(*install, "--no-build-isolation", "--no-binary", "flash-attn", "flash-attn==2.8.3", **BUILD)
    return found


def run_tests(python: Path, *selection: str, **changes: str) -> None:
    run(python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--nightly", *selection, **changes)


IN_TRITON = (
    *("llama2", "llama3", "mixtral", "granite", "dbrx", "falcon", "gemma", "olmo", "phi", "phi3", "qwen2", "qwen2_moe"),
    *("stablelm", "qwen3", "qwen3_moe", "deepseek_v3", "glm4", "cohere"),
)
"""Families whose attention has no windows, which the Triton kernels lack."""

TRAIN_AS_ALONE = "test_packed_documents_train_as_alone"
STATIC = "test_static_batches_with_flash_attention_train_as_on_documents_alone"
TRAINERS = "test_trainers_with_flash_attention_train_as_on_documents_alone"


def test_documents_train_as_alone_by_the_kernels_of_flash_attention_in_an_interpreter(python):
    families = (f"tests/test_families.py::{TRAIN_AS_ALONE}[{family}-flash_attention_2]" for family in IN_TRITON)
    run_tests(python, *families, *(f"tests/test_training.py::{name}" for name in (TRAINERS, STATIC)), **INTERPRETER)


def test_documents_train_as_alone_by_flash_attention_with_windows_and_capped_logits(python):
    """And sinks: by the Python of flash-attn 2, 3 and 4 over stand-ins for their kernels that check arguments."""
    run_tests(python, "tests/test_families.py", "tests/test_training.py", "-k", "flash_attention")


def test_torchtitan_keeps_documents_apart(python):
    packages = (
        "torchtitan==0.3.0",
        "torch_checkpointing",
        "spmd_types==0.2.3",
        "tyro",
        "docstring_parser",
        "typeguard",
    )
    run(python, "-m", "pip", "install", "--no-deps", *packages)
    run_tests(python, "tests/test_export_trainers.py", "tests/test_trainer_loaders.py", "-k", "torchtitan")

"""Trainers with requirements of their own train packed rows, each in an environment that the test builds over this one.

torchtitan runs in tests/test_flash_attention.py.
"""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = Path(__file__).parent.parent

pytestmark = [pytest.mark.nightly, pytest.mark.slow]

HUB = "httpx==0.28.1 httpcore==1.0.9 huggingface_hub==1.17.0"
TELEMETRY = (
    "opentelemetry-api==1.45.2 opentelemetry-sdk==1.45.2 opentelemetry-proto==1.45.2 "
    "opentelemetry-semantic-conventions==0.66b2 opentelemetry-exporter-otlp-proto-http==1.45.2 "
    "opentelemetry-exporter-otlp-proto-common==1.45.2"
)
PACKAGES = {
    "axolotl": (
        "axolotl==0.21.0 axolotl-ringmaster==0.2.7 transformers==5.20.1 trl==1.14.1 accelerate==1.15.0 peft==0.21.2 "
        f"datasets==5.0.1 {HUB.replace('1.17.0', '1.33.0')} tokenizers==0.23.3 {TELEMETRY} addict==2.4.0 "
        "antlr4-python3-runtime==4.13.2 art==6.5 axolotl-contribs-lgpl==0.0.7 axolotl-contribs-mit==0.0.6 "
        "backoff==2.2.1 bitsandbytes==0.50.2 colorama==0.4.6 coloredlogs==15.0.1 distro==1.9.0 einops==0.8.2 "
        "evaluate==0.4.1 fastcore==2.2.41 fire==0.7.1 humanfriendly==10.0 kernels==0.17.2 liger-kernel==0.8.4 "
        "mistral-common==1.12.0 nvidia-ml-py==12.560.30 optimum==1.16.2 platformdirs==4.14.8 posthog==6.7.11 "
        "pycountry==26.2.16 pydantic==2.13.5 pydantic-core==2.46.5 pydantic-extra-types==2.11.1 python-dotenv==1.0.1 "
        "schedulefree==1.4.1 termcolor==3.3.0 tomlkit==0.15.2 triton==3.8.0 typer==0.25.1 wandb==0.31.0"
    ),
    "verl": (
        f"verl==0.9.1 transformers==5.10.0 accelerate==1.13.0 peft==0.19.0 datasets==4.8.4 {HUB} tokenizers==0.22.2 "
        f"{TELEMETRY} tensordict==0.10.0 hydra-core==1.3.8 omegaconf==2.4.0 antlr4-python3-runtime==4.9.3 cloudpickle "
        "codetiming==1.4.0 fastapi orjson pylatexenc==2.11 pyvers starlette uvicorn"
    ),
    "ms-swift": (
        f"ms-swift==4.6.0 transformers==5.10.0 trl==0.29.1 accelerate==1.13.0 peft==0.19.0 datasets==4.8.4 {HUB} "
        "tokenizers==0.22.2 dacite==1.9.2 einops==0.8.2 json-repair==0.64.6 modelscope==1.40.2 modelscope-hub==0.5.1"
    ),
    "olmo-core": (
        "ai2-olmo-core==3.0.0 bettermap==1.3.1 cached-path==1.8.10 dataclass-extensions==0.5.0 "
        "importlib-resources==7.1.0 google-api-core==2.44.0 google-auth==2.63.0 google-cloud-core==2.8.0 "
        "google-cloud-storage==3.17.1 google-crc32c==1.9.0 google-resumable-media==2.11.0 "
        "googleapis-common-protos==1.76.0 proto-plus==1.29.0"
    ),
    "automodel": ("nemo-automodel==0.7.0 transformers==5.18.0 megatron-fsdp==0.5.0 torchao==0.18.0 flashoptim==0.1.4"),
    "megatron-bridge": (
        f"--ignore-requires-python megatron-bridge==0.6.2 megatron-core==0.19.2 transformers==5.12.1 datasets==4.8.4 "
        f"{HUB} tokenizers==0.22.2 triton==3.8.0"
    ),
}
"""Packages of each trainer, without those that are optional; others are those of this environment."""

TESTS = {
    "axolotl": ["tests/test_axolotl.py"],
    "verl": ["tests/test_trainer_loaders.py", "-k", "verl"],
    "ms-swift": ["tests/test_ms_swift.py"],
    "olmo-core": ["tests/test_olmo_core.py"],
    "automodel": ["tests/test_automodel.py"],
    "megatron-bridge": ["tests/test_megatron.py", "--nightly"],
}


def run(*command: object) -> str:
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-9000:] + done.stderr[-9000:]
    return done.stdout


@pytest.mark.parametrize("trainer", TESTS)
def test_a_trainer_trains_as_on_documents_alone(trainer, tmp_path):
    if trainer == "megatron-bridge" and sys.version_info < (3, 12):
        pytest.skip("megatron-core 0.19 needs Python 3.12")
    run(sys.executable, "-m", "venv", tmp_path)
    python = tmp_path / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    install = ["install", "--no-deps", "--ignore-requires-python"]  # Axolotl wants 3.12, and runs on 3.11
    run(python, "-m", "pip", *install, *PACKAGES[trainer].split())
    shutil.rmtree(site / "tests", ignore_errors=True)  # of verl, in the way of ours
    printed = run(python, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *TESTS[trainer])
    assert "skipped" not in printed, printed

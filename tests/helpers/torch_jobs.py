"""Jobs of two processes with torch.distributed over gloo, on this machine."""

import gc
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def run_two(module: str, folder: Path, *arguments: object) -> None:
    """Run `python -m MODULE FOLDER ...` in both processes of a job, and fail with their output if one fails."""
    running = []
    for rank in range(2):
        environment = os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        environment |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}  # asked for, and not used
        environment |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", module, str(folder), *map(str, arguments)]
        running.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
            )
        )
    outputs = [process.communicate(timeout=300)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], "\n".join(outputs)


@contextmanager
def job(folder: Path):
    """Join the other process; yields the number of this one."""
    import torch
    import torch.distributed as distributed

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    yield rank
    gc.collect()  # torch 2.13 hangs if a DDP wrapper, which trainers hold in cycles, outlives its process group
    distributed.destroy_process_group()

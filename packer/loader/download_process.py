"""Download an object in a process of its own, for processes that were forked.

The threads of obstore do not survive a fork: in a forked process, as DataLoader makes them for its workers, a request
would wait for ever.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from packer.errors import PackerError
from packer.stores import RemotePath

_COMMAND = "from packer.loader.download_process import main; main()"


def download_in_subprocess(source: RemotePath, to: Path) -> None:
    """Download an object as `RemotePath.download` does.

    Raises:
        OSError: it cannot be read; its text and kind are those of the error in the process.
    """
    done = subprocess.run(
        [sys.executable, "-c", _COMMAND, str(source), str(to)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        return
    try:
        number, text, name = json.loads(done.stdout)
    except ValueError:
        end = " ".join(done.stderr.split())[-300:]
        raise OSError(f"{source}: the process that downloads it ended with {done.returncode} ({end})") from None
    raise OSError(text) if number is None else OSError(number, text, name)


def main() -> None:
    """Download the object that the arguments name; if it cannot be read, print [errno, text, file name] as JSON."""
    address, to = sys.argv[1:]
    try:
        RemotePath.of(address).download(Path(to))
    except PackerError as error:
        _fail(None, str(error), None)
    except OSError as error:
        _fail(error.errno, error.strerror or str(error), error.filename)


def _fail(number: int | None, text: str, name: str | None) -> None:
    print(json.dumps([number, text, name]))
    sys.exit(1)

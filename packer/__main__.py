"""The command `packer`, which can also be run as `python -m packer`."""

import os

from packer.signals import handle_from_the_start


def main() -> None:
    """Handle signals, then import click and the commands, and run the command line."""
    handle_from_the_start()
    # NumPy's BLAS starts a thread for each core. All of them spin for 0.1 s, but commands multiply no large matrices.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from packer.cli import main as run

    run()


if __name__ == "__main__":
    main()

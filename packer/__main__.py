"""The command `packer`; `python -m packer` is the same."""

from packer.signals import handle_from_the_start


def main() -> None:
    """Handle signals, then import click and the commands, and run."""
    handle_from_the_start()
    from packer.cli import main as run

    run()


if __name__ == "__main__":
    main()

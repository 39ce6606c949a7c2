"""The command `packer`, also as `python -m packer`."""

from packer.signals import handle_from_the_start


def main() -> None:
    """Run the command; signals are handled before click and the commands are imported."""
    handle_from_the_start()
    from packer.cli import main as run

    run()


if __name__ == "__main__":
    main()

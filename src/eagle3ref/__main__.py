"""``python -m eagle3ref`` and the ``eagle3ref`` command."""

import sys


def main() -> None:
    """The command line, or what it lacks."""
    try:
        from eagle3ref.cli import main as run
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in ("typer", "rich"):
            raise
        sys.stderr.write(f"error: the command line needs {library}. Install it: pip install 'eagle3ref[cli]'\n")
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()

"""Run the command line, as ``maskwitness`` or ``python -m maskwitness``."""

import sys


def main() -> None:
    """Run it; Ctrl-C while it is still being imported is no accident either."""
    try:
        from maskwitness.cli import main as run

        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()

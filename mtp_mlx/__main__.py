"""``python -m mtp_mlx`` is ``mtp-mlx``."""

import sys


def main() -> int:
    """Run the command line; Ctrl-C is a line while it is imported, too."""
    try:
        from mtp_mlx.cli import main
    except KeyboardInterrupt:
        print("mtp-mlx: stopped", file=sys.stderr)
        return 130
    return main()


if __name__ == "__main__":
    sys.exit(main())

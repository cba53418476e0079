"""Open the page: ``uv run app.py [--host HOST] [--port PORT]``."""

from contextlib import suppress

if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # while it is imported, too
        from mtp_mlx.ui.serve import main

        main()

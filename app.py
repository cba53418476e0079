"""Open the page: ``uv run app.py [--host HOST] [--port PORT]``."""

from mtp_mlx.ui.serve import main

if __name__ == "__main__":
    main()

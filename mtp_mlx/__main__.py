"""``python -m mtp_mlx`` is ``mtp-mlx``."""

import sys

from mtp_mlx.cli import main

sys.exit(main())

"""Batches: files in, files out, resumable; ``run`` is the iterator beneath them."""

from mtp_mlx.batch.answers import run as run

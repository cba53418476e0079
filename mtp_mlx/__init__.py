"""Frozen multi-token prediction on MLX: a language model's own text in fewer passes."""

__version__ = "0.2.0"

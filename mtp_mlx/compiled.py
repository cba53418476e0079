"""A function that MLX compiles, where it can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx


class Compiled:
    """Compiled at the first call with arguments of a shape, and kept for each.

    What asks for the value of an array cannot be compiled: some of mlx-lm's rotary positions do (``dynamic`` ones
    compare the offset). Such a function is called as it is, from the first call on.
    """

    def __init__(self, function: Callable[..., Any]):
        """``function``: of arrays, and of lists of them, that changes nothing but what it returns."""
        self._function = function
        self._compiled: Callable[..., Any] = mx.compile(function)

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self._compiled(*arguments)
        except ValueError:  # what is not the compiler's fault is raised again
            result = self._function(*arguments)
            self._compiled = self._function
            return result

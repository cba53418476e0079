"""On a Linux CPU: the same mathematics in the forms that MLX and its BLAS compute fastest there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.nn as nn
from mlx.utils import tree_map

from mtp_mlx.cpu import powers, rotation
from mtp_mlx.cpu.powers import on_linux_cpu
from mtp_mlx.cpu.products import Linear
from mtp_mlx.cpu.rotation import Rotation

_ONE_AT_A_TIME = threading.RLock()


def adapt(model: nn.Module) -> None:
    """Exchange a model's linear layers and rotary positions for ours, where those are faster; weights stay as they are.

    What they compute differs from MLX's own in the last bits, as another BLAS would, so whatever is to be equal in
    every bit has to be adapted alike.
    """
    if not on_linux_cpu():
        return
    rotations: dict[tuple[int, float, float, bool], Rotation] = {}  # layers share one

    def ours(module: nn.Module) -> nn.Module:
        if type(module) is nn.Linear:
            return Linear.of(module)
        if type(module) is nn.RoPE:
            key = (module.dims, module.base, module.scale, module.traditional)
            return rotations.setdefault(key, Rotation(module))
        return module

    model.update_modules(tree_map(ours, model.leaf_modules(), is_leaf=nn.Module.is_module))


def original(model: Any) -> Any:
    """An mlx-lm model as mlx-lm makes it, over the weights of one that was adapted."""
    if not on_linux_cpu():
        return model
    made = type(model)(model.args)
    made.update(model.parameters())
    return made.eval()


@contextmanager
def one_pass(model: Any) -> Iterator[None]:
    """Within the block, where a pass is put together, the model takes our functions too, and nothing is made twice.

    One at a time: mlx-lm's models of a kind share their functions, whichever thread they are called in.
    """
    with _ONE_AT_A_TIME, powers.instead(model), rotation.one_pass():
        yield

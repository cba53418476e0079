"""Trained weights that belong to one backbone: what is written for it, and refused for any other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import mlx.core as mx
import numpy as np

from mtp_mlx.weights import KINDS, WeightsError, verify, write_sums

if TYPE_CHECKING:
    from mtp_mlx.backbone import Backbone

Config = TypeVar("Config")


def save(folder: Path, *, model_type: str, config: Any, arrays: Mapping[str, mx.array]) -> None:
    """Write config.json, model.safetensors (float16; integers as they are) and SHA256SUMS; other files stay."""
    folder.mkdir(parents=True, exist_ok=True)
    half = {k: v.astype(mx.float16) if mx.issubdtype(v.dtype, mx.floating) else v for k, v in arrays.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), half, {"format": "mlx"})
    text = json.dumps({"model_type": model_type, **asdict(config)}, indent=2)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    write_sums(folder)


def read(
    folder: Path, kind: type[Config], *, model_type: str, what: str, cure: str
) -> tuple[Config, dict[str, mx.array]]:
    """The configuration, as a dataclass ``kind``, and the arrays of a folder that ``save`` wrote.

    Raises:
        WeightsError: missing, damaged, or something else than ``what``; the line ends with the ``cure``.
    """
    verify(folder, cure=f"get the folder again, or {cure}")
    with readable(folder, what=what, cure=cure):
        fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        found = str(fields.pop("model_type", None))
    if found != model_type:
        name, option = KINDS.get(found, ("another kind of model", "--backbone"))
        wanted, _ = KINDS[model_type]
        raise WeightsError(f"{folder} holds {name} (what {option} is for), not {wanted}: give {wanted}'s, or {cure}")
    with readable(folder, what=what, cure=cure):
        config = kind(**{name: _frozen(value) for name, value in fields.items()})
        arrays: Any = mx.load(str(folder / "model.safetensors"))
        return config, arrays


def _frozen(value: Any) -> Any:
    """Lists of a JSON value as tuples."""
    if isinstance(value, dict):
        return {name: _frozen(inner) for name, inner in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


@contextmanager
def readable(folder: Path, *, what: str, cure: str) -> Iterator[None]:
    """Whatever json, mlx or a missing field raises, the folder is not ``what`` it should be."""
    try:
        yield
    except Exception as error:
        raise WeightsError(f"{folder} is not a readable {what} ({error}): {cure}") from error


def check_chances(*rows: Sequence[float]) -> None:
    """Raise ValueError where one of them is not a row of probabilities."""
    for row in rows:
        if not row or not all(0 <= chance <= 1 for chance in row):
            raise ValueError(f"{row!r} are not probabilities")


def check(
    folder: Path,
    config: Any,
    arrays: Mapping[str, mx.array],
    backbone: Backbone,
    *,
    layers: Sequence[int],
    cure: str,
) -> None:
    """Refuse what was trained on another backbone (``config.backbone``) or vocabulary (``config.vocab``).

    Raises:
        WeightsError: another backbone or vocabulary, or ``layers`` or draft ids that the backbone does not have.
    """
    if not all(isinstance(layer, int) and 0 <= layer < len(backbone.model.layers) for layer in layers):
        raise WeightsError(f"{folder} names layers that {backbone.path.name} does not have: {cure}")
    if config.vocab != backbone.vocab_hash:
        raise WeightsError(f"{folder} drafts in another vocabulary than {backbone.path.name}: {cure}")
    if config.backbone != backbone.fingerprint:
        raise WeightsError(f"{folder} was trained on another backbone than {backbone.path}: {cure}")
    if "draft_vocab" in arrays:  # mlx reads past the end of a matrix for an id beyond it
        ids = np.array(arrays["draft_vocab"])
        if not ids.size or ids.min() < 0 or ids.max() >= backbone.args.vocab_size:
            raise WeightsError(f"{folder} drafts ids that {backbone.path.name} does not have: {cure}")
        frequent = 0 if config.frequent is None else config.frequent
        if not isinstance(frequent, int) or not 0 <= frequent <= ids.size:
            raise WeightsError(f"{folder} has {frequent!r} frequent ids of {ids.size:,}: {cure}")

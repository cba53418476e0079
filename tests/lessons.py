"""What the tests of training learn from: short texts of two tasks, and a recipe of a minute."""

from pathlib import Path

import numpy as np

from mtp_mlx.training.recipe import Recipe

ROOT = Path(__file__).resolve().parent.parent
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "home"]
RECIPE = Recipe(
    kv_layers=(1, 3), standalone_layers=(0, 3), draft_vocab=512, epochs=6, unroll=2, anchors=128, learning_rate=3e-3
)


def rows(count):
    """Short texts of two tasks, four to a document."""
    rng = np.random.default_rng(0)
    return [
        {
            "id": f"doc{i // 4}-{i % 4}",
            "task": ("proofread", "summarize")[i % 2],
            "text": " ".join(rng.choice(WORDS, 4)),
        }
        for i in range(count)
    ]

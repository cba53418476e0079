"""What a recipe leaves to the backbone."""

from dataclasses import replace

from lessons import RECIPE

from mtp_mlx.training.recipe import Recipe


def test_layers_that_nobody_chose_are_the_backbones():
    assert (Recipe().on(30).kv_layers, Recipe().on(30).standalone_layers) == ((20, 29), (0, 29))
    chosen = replace(RECIPE, kv_layers=(1, 2, 3))
    assert chosen.on(30) == chosen


def test_any_backbone_has_the_layers_that_are_taken():
    for depth in range(1, 100):
        recipe = Recipe().on(depth)
        assert all(0 <= layer < depth for layer in (*recipe.kv_layers, *recipe.standalone_layers))

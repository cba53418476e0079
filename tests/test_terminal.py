"""Lines of a terminal: a number has the noun that goes with it."""

import pytest

from mtp_mlx.terminal import counted


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((0, "token"), "0 tokens"),
        ((1, "token"), "1 token"),
        ((2, "token"), "2 tokens"),
        ((1, "pass", "passes"), "1 pass"),
        ((1234, "pass", "passes"), "1,234 passes"),
    ],
)
def test_one_is_not_many(words, said):
    assert counted(*words) == said

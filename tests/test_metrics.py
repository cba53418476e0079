"""Statistics: sums over rounds, and the field's ratios of them."""

from __future__ import annotations

import json
import math

import pytest
from conftest import rounds
from hypothesis import given
from hypothesis import strategies as st

from mtp_mlx.events import Kind, Round
from mtp_mlx.metrics import Stats, fold

many = st.lists(rounds(), max_size=12)


def round_of(drafted: int, accepted: int, kind: Kind) -> Round:
    token = None if kind == "end" else 7
    return Round(tuple(range(drafted)), (), accepted, token, kind, 1.0, 0.25, 0.5)


def merged(*parts: Stats) -> Stats:
    total = Stats()
    for part in parts:
        total.merge(part)
    return total


def same(one: Stats, other: Stats) -> bool:
    """Equal, but for the last bits of sums of seconds."""
    return all(
        math.isclose(value, vars(other)[name], rel_tol=1e-9, abs_tol=1e-9)
        if name.endswith("seconds")
        else value == vars(other)[name]
        for name, value in vars(one).items()
    )


def test_by_hand():
    stats = fold(
        [
            round_of(0, 0, "first"),  # 1 token, in no round
            round_of(0, 0, "plain"),  # 1
            round_of(3, 3, "bonus"),  # 4
            round_of(3, 1, "correction"),  # 2
            round_of(2, 0, "correction"),  # 1
            round_of(3, 2, "end"),  # 2
        ],
        prefill_seconds=2.0,
    )
    assert (stats.rounds, stats.tokens, stats.first, stats.drafted, stats.accepted) == (5, 11, 1, 11, 6)
    assert (stats.drafted_at, stats.accepted_at) == ([4, 4, 3], [3, 2, 1])
    assert stats.per_position == [3 / 4, 2 / 4, 1 / 3]
    assert stats.additional_per_pass == 6 / 5
    assert stats.acceptance_rate == 6 / 11
    assert stats.passes_saved == 5
    assert stats.seconds == 5 * 0.75
    assert stats.prefill_seconds == 2.0
    assert stats.tokens_per_second == 10 / 3.75


def test_nothing_yet():
    stats = fold([])
    assert stats == Stats()
    assert (stats.additional_per_pass, stats.acceptance_rate, stats.tokens_per_second) == (0, 0, 0)
    assert (stats.per_position, stats.passes_saved) == ([], 0)


def test_nothing_accepted():
    stats = fold([round_of(2, 0, "correction")])
    assert stats.per_position == [0, 0]
    assert stats.acceptance_rate == 0


@given(many)
def test_per_position_counts_add_up(some: list[Round]):
    stats = fold(some)
    assert sum(stats.accepted_at) == stats.accepted
    assert sum(stats.drafted_at) == stats.drafted
    assert stats.accepted_at == sorted(stats.accepted_at, reverse=True)  # a token counts only behind accepted ones
    assert len(stats.per_position) == max((len(r.drafted) for r in some), default=0)
    assert all(0 <= share <= 1 for share in stats.per_position)


@given(many)
def test_every_committed_token_is_counted(some: list[Round]):
    stats = fold(some)
    assert stats.tokens == sum(len(r.committed) for r in some)
    assert stats.tokens == stats.accepted + sum(r.token is not None for r in some)


@given(many, st.integers(0, 12))
def test_merging_parts_is_folding_the_whole(some: list[Round], cut: int):
    parts = merged(fold(some[:cut], prefill_seconds=1.0), fold(some[cut:], prefill_seconds=2.0))
    assert same(parts, fold(some, prefill_seconds=3.0))


@given(many, many, many)
def test_merging_is_associative_and_commutative(a: list[Round], b: list[Round], c: list[Round]):
    left = merged(merged(fold(a), fold(b)), fold(c))
    assert same(left, merged(fold(a), merged(fold(b), fold(c))))
    assert same(left, merged(fold(c), fold(a), fold(b)))


@given(many, many)
def test_merging_leaves_the_other_alone(a: list[Round], b: list[Round]):
    one, other = fold(a), fold(b)
    one.merge(other)
    one.merge(fold(a))
    assert other == fold(b)


@given(many)
def test_json_holds_sums_and_ratios(some: list[Round]):
    stats = fold(some)
    fields = json.loads(json.dumps(stats.to_json(), allow_nan=False))
    for name in ("rounds", "drafted", "accepted", "additional_per_pass", "acceptance_rate", "per_position", "seconds"):
        assert fields[name] == pytest.approx(getattr(stats, name))
    assert "prefill_seconds" in fields

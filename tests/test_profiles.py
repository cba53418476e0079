"""Phone profiles: figures with sources, admission to the byte, and what a refusal says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtp_mlx.profiles import GB, Ledger, Profile, ProfileError, admit, get, human, profiles, watch

KNOWN = profiles()
PHONES = [p for p in KNOWN.values() if p.key != "none"]
SMALLEST = min(PHONES, key=lambda p: p.budget_bytes or 0)
LARGEST = max(PHONES, key=lambda p: p.budget_bytes or 0)
phones = st.sampled_from(PHONES)


def limit(profile: Profile) -> int:
    assert profile.budget_bytes is not None
    return profile.budget_bytes


def refusal(profile: Profile, size: int, alternatives: dict[str, int] | None = None) -> str:
    with pytest.raises(ProfileError) as error:
        admit(profile, Ledger({"backbone weights": size}), alternatives=alternatives)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_all_the_phones_are_there() -> None:
    expected = {"8", "8-pro", "9a", "9", "9-pro", "10", "10-pro"}
    assert {p.key for p in PHONES} == {f"pixel-{model}" for model in expected}


@pytest.mark.parametrize("phone", PHONES, ids=lambda p: p.key)
def test_every_phone_has_plausible_figures_and_a_source_for_each(phone: Profile) -> None:
    assert phone.ram_bytes in {8 * GB, 12 * GB, 16 * GB}
    assert any(s.figure == "RAM" for s in phone.sources)
    published = any(s.figure == "AI-reserved memory" for s in phone.sources)
    assert published == (phone.ai_reserved_bytes is not None)
    assert all(s.title and s.url.startswith("https://") for s in phone.sources)
    assert GB < limit(phone) < phone.ram_bytes / 2


def test_a_published_figure_is_the_budget_and_a_share_of_ram_stands_in() -> None:
    published, unknown = Profile("a", "A", 16 * GB, 3 * GB), Profile("b", "B", 16 * GB)
    assert published.budget_bytes == 3 * GB
    assert 0 < limit(unknown) < 16 * GB


def test_more_ram_in_a_generation_never_means_a_smaller_budget() -> None:
    for small, large in (("8", "8-pro"), ("9a", "9"), ("9", "9-pro"), ("10", "10-pro"), ("9", "10")):
        assert limit(KNOWN[f"pixel-{small}"]) <= limit(KNOWN[f"pixel-{large}"])


@given(phones, st.integers(-3, 3), st.lists(st.integers(0, GB // 8), max_size=4))
def test_admission_is_exact_to_the_byte(phone: Profile, offset: int, parts: list[int]) -> None:
    total = limit(phone) + offset
    ledger = Ledger({f"part {i}": size for i, size in enumerate([*parts, total - sum(parts)])})
    assert ledger.total == total
    if offset <= 0:
        admit(phone, ledger)
        assert watch(phone, total) is None
    else:
        with pytest.raises(ProfileError, match=f": {offset} B over"):
            admit(phone, ledger)
        assert watch(phone, total)


@given(st.integers(0, 2**60))
def test_this_machine_has_no_limit(size: int) -> None:
    admit(get("none"), Ledger({"weights": size}))
    assert watch(get("none"), size) is None


def test_an_empty_ledger_fits() -> None:
    admit(SMALLEST, Ledger())


def test_a_refusal_says_what_and_by_how_much() -> None:
    message = refusal(SMALLEST, limit(SMALLEST) + 300 * 2**20)
    assert "backbone weights" in message
    assert SMALLEST.name in message
    assert human(300 * 2**20) in message


def test_the_first_alternative_that_fits_is_named() -> None:
    room = limit(SMALLEST)
    message = refusal(SMALLEST, room + 1, {"16-bit": room + 1, "8-bit": room, "4-bit": 1})
    assert "8-bit" in message
    assert "16-bit" not in message
    assert "4-bit" not in message


@given(phones, st.integers(1, 8 * GB))
def test_without_one_the_smallest_phone_with_room_is_named(phone: Profile, over: int) -> None:
    size = limit(phone) + over
    advice = refusal(phone, size, {"still too big": size}).rpartition(";")[2]
    assert "still too big" not in advice
    roomy = [p for p in PHONES if limit(p) >= size]
    if roomy:
        least = min(map(limit, roomy))
        assert any(advice.endswith(f" {p.name}") for p in roomy if limit(p) == least)
    else:
        assert not any(p.name in advice for p in PHONES)


def test_nothing_but_no_limit_holds_more_than_every_phone() -> None:
    assert "limit" in refusal(LARGEST, limit(LARGEST) + 1)


def test_a_warning_is_one_line_with_the_excess() -> None:
    warning = watch(SMALLEST, limit(SMALLEST) + 5 * 2**20)
    assert warning is not None
    assert "\n" not in warning
    assert human(5 * 2**20) in warning


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ProfileError) as error:
        get("pixel-11")
    assert all(key in str(error.value) for key in ("pixel-11", *KNOWN))
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (2**20, "1.0 MiB"), (8 * GB, "8.00 GiB")],
)
def test_sizes_use_powers_of_1024(size: int, text: str) -> None:
    assert human(size) == text

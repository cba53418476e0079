"""Mistyping: deterministic, changes what it should, never empties a text."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtp_mlx.training.typos import mistype, read_misspellings

SENTENCE = "I don't know the people who went to the market, but they are nice."
MISSPELLINGS = {"people": ["poeple"], "market": ["markat"]}


def test_the_same_mistakes_for_the_same_seed_and_others_for_another():
    typed = [mistype(SENTENCE, Random(seed), MISSPELLINGS) for seed in range(60)]
    assert typed == [mistype(SENTENCE, Random(seed), MISSPELLINGS) for seed in range(60)]
    assert len(set(typed)) > 30


def test_every_kind_of_mistake_comes_up_and_some_texts_have_none():
    typed = [mistype(SENTENCE, Random(seed), MISSPELLINGS) for seed in range(400)]
    assert SENTENCE in typed
    assert any("poeple" in text for text in typed)  # misspelt
    assert any("goed" in text for text in typed)  # a learner's
    assert any(" u " in f" {mistype('are you there', Random(seed), {})} " for seed in range(100))  # texting
    assert any("dont" in text for text in typed)  # no apostrophe
    assert any(text == text.lower() for text in typed)
    assert any(text.endswith("nice") for text in typed)  # no full stop
    assert any("the people" not in text and "people" in text for text in typed)  # no article


@given(st.text(max_size=80), st.integers())
def test_any_text_gets_an_answer(text, seed):
    typed = mistype(text, Random(seed), MISSPELLINGS)
    assert bool(typed) == bool(text)


def test_rare_words_are_left_out(tmp_path):
    (tmp_path / "m.tsv").write_text(
        "misspelling\tcorrection\tsources\tcorrection_freq\nteh\tthe\tx\t90\nzzy\tzoology\tx\t1\n", encoding="utf-8"
    )
    assert read_misspellings(tmp_path) == {"the": ["teh"]}
    assert read_misspellings(tmp_path / "nowhere") == {}


@pytest.mark.parametrize("line", ["teh\tthe\tx\tmany\n", "teh\n"])
def test_a_broken_row_is_left_out(tmp_path, line):
    head = "misspelling\tcorrection\tsources\tcorrection_freq\n"
    (tmp_path / "m.tsv").write_text(head + line + "hte\tthe\tx\t90\n", encoding="utf-8")
    assert read_misspellings(tmp_path) == {"the": ["hte"]}

"""The trace: text grows by whole characters and ends as the decoded ids, however rounds cut them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import pytest
from conftest import CHARACTERS, rounds
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import TokenizerWrapper

from mtp_mlx.events import Done, Draft, Guess, Inspection, Prefilled, Reason, Round, Row
from mtp_mlx.prompt import encode_text
from mtp_mlx.trace import FAULT_AFTER, Trace

EOS = 2
EMOJI = "👩‍👩‍👧‍👦"  # four emoji of four bytes each, joined; most tokens are a byte or two

unicode = st.text(CHARACTERS, max_size=40)
cuts = st.lists(st.integers(1, 8), max_size=60)


def new(tokenizer: TokenizerWrapper, drafter: str = "lookup") -> Trace:
    return Trace(
        task="proofread",
        drafter=drafter,
        width=8,
        draft_length=7,
        max_tokens=100,
        decode=tokenizer.decode,
        eos=frozenset({EOS}),
    )


def round_of(ids: Sequence[int]) -> Round:
    """A round that commits ids: all but the last were drafted."""
    *drafted, last = ids
    kind = "end" if last == EOS and drafted else "bonus" if drafted else "plain"
    drafted = tuple(ids) if kind == "end" else tuple(drafted)
    return Round(drafted, (), len(drafted), None if kind == "end" else last, kind, 1.0, 0.1, 0.2)


def cut(ids: list[int], lengths: Iterable[int]) -> list[list[int]]:
    """ids in pieces of these lengths, the rest one by one."""
    pieces, lengths = [], iter(lengths)
    while ids:
        length = next(lengths, 1)
        pieces.append(ids[:length])
        ids = ids[length:]
    return pieces


def play(trace: Trace, pieces: Iterable[Sequence[int]], reason: Reason = "end") -> list[str]:
    """The text after each round and at the end; what each event added must be the difference."""
    shown = []
    for event in [*map(round_of, pieces), Done(reason)]:
        before = trace.text
        added = trace.add(event)
        assert trace.text == before + added
        shown.append(trace.text)
    return shown


@given(text=unicode, lengths=cuts, end=st.booleans())
def test_text_grows_by_whole_characters(tokenizer: TokenizerWrapper, text: str, lengths: list[int], end: bool):
    ids = encode_text(tokenizer, text) + [EOS] * end
    trace = new(tokenizer)
    pieces = cut(ids, lengths)
    shown = play(trace, pieces, "end" if end else "budget")
    assert all(text.startswith(part) for part in shown)
    assert shown[-1] == text
    assert trace.token_ids == ids
    seen: list[int] = []
    for piece, part in zip(pieces, shown, strict=False):  # and nothing whole is held back
        seen += [i for i in piece if i != EOS]
        assert part.startswith(tokenizer.decode(seen).rstrip("\ufffd"))
    assert trace.stats.tokens == len(ids)


@given(ids=st.lists(st.integers(17, 49151), max_size=40), lengths=cuts)
def test_any_tokens_end_as_their_decoded_text(tokenizer: TokenizerWrapper, ids: list[int], lengths: list[int]):
    """Also where they are no valid UTF-8."""
    shown = play(new(tokenizer), cut(ids, lengths))
    assert shown[-1] == (tokenizer.decode(ids) if ids else "")
    assert all(shown[-1].startswith(part) for part in shown)


@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_an_emoji_over_several_rounds_appears_at_once(tokenizer: TokenizerWrapper, length: int):
    text = f"a{EMOJI}b"
    ids = encode_text(tokenizer, text)
    assert len(ids) > 2 * len(text)
    shown = play(new(tokenizer), cut(ids, [length] * len(ids)))
    assert all(text.startswith(part) for part in shown)
    assert shown[-1] == text
    assert len(set(shown)) > 3  # it did grow on the way


def test_half_a_character_at_the_end_is_shown_as_such(tokenizer: TokenizerWrapper):
    ids = encode_text(tokenizer, "ok 👩")[:-1]
    trace = new(tokenizer)
    shown = play(trace, cut(ids, []), "budget")
    assert shown[-2] == "ok "
    assert shown[-1] == tokenizer.decode(ids)
    assert shown[-1].startswith("ok \ufffd")


def test_a_real_replacement_character_comes_through(tokenizer: TokenizerWrapper):
    text = "a\ufffdb\ufffd"
    assert play(new(tokenizer), cut(encode_text(tokenizer, text), []))[-1] == text


@pytest.mark.parametrize("ids", [[EOS], [9690, EOS]])
def test_end_of_text_is_counted_and_not_shown(tokenizer: TokenizerWrapper, ids: list[int]):
    trace = new(tokenizer)
    play(trace, [ids])
    assert trace.text == tokenizer.decode(ids[:-1])
    assert trace.token_ids == ids
    assert trace.to_json()["token_ids"] == ids


def test_status_and_finish(tokenizer: TokenizerWrapper):
    for reason, status in (("end", "done"), ("budget", "done"), ("stopped", "stopped")):
        trace = new(tokenizer)
        assert (trace.status, trace.finish) == ("running", None)
        trace.add(Done(reason))
        assert (trace.status, trace.finish) == (status, reason)


def test_a_draft_is_pending_until_it_is_judged(tokenizer: TokenizerWrapper):
    trace = new(tokenizer)
    assert trace.to_json()["pending"] == []
    trace.add(Draft((9690, 28), (0.5, 0.25), 0.1))
    assert trace.to_json()["pending"] == [
        {"id": 9690, "text": tokenizer.decode([9690]), "probability": 0.5},
        {"id": 28, "text": tokenizer.decode([28]), "probability": 0.25},
    ]
    assert trace.text == ""
    trace.add(round_of([9690, 28, 5]))
    assert trace.to_json()["pending"] == []


def test_a_round_as_people_read_it(tokenizer: TokenizerWrapper):
    trace = new(tokenizer)
    trace.add(Prefilled(12, 0.5))
    trace.add(Round((9690, 28), (), 1, 5356, "correction", 0.75, 0.1, 0.2))
    shown = trace.to_json()
    assert (shown["prompt_tokens"], shown["stats"]["prefill_seconds"]) == (12, 0.5)
    assert shown["rounds"] == [
        {
            "drafted": [
                {"id": 9690, "text": tokenizer.decode([9690]), "probability": None, "top": [], "attention": []},
                {"id": 28, "text": tokenizer.decode([28]), "probability": None, "top": [], "attention": []},
            ],
            "accepted": 1,
            "token": {"id": 5356, "text": tokenizer.decode([5356])},
            "kind": "correction",
            "added": tokenizer.decode([9690, 5356]),
            "margin": 0.75,
            "rows": [],
            "draft_seconds": 0.1,
            "verify_seconds": 0.2,
        }
    ]
    assert shown["token_ids"] == [9690, 5356]


def test_what_was_looked_at_belongs_to_the_round_that_follows(tokenizer: TokenizerWrapper):
    trace = new(tokenizer)
    trace.add(Draft((9690,), (0.5,), 0.1))
    row = Row(((5356, 0.12345678), (9690, 0.1)), 0.1234567, 2, 0.1)
    guess = Guess(((9690, 0.5), (28, 0.25)), (((0, 0.25004), (7, 0.5)), ()))
    trace.add(Inspection((guess,), (row, row)))
    assert trace.rounds == [] and trace.text == ""
    trace.add(Round((9690,), (0.5,), 0, 5356, "correction", 0.75, 0.1, 0.2))
    (round,) = trace.to_json()["rounds"]
    (token,) = round["drafted"]
    assert token["attention"] == [[[0, 0.25], [7, 0.5]], []]
    assert [(choice["id"], choice["probability"]) for choice in token["top"]] == [(9690, 0.5), (28, 0.25)]
    assert [row["top"][0] for row in round["rows"]] == 2 * [
        {"id": 5356, "text": tokenizer.decode([5356]), "probability": 0.1235}
    ]
    assert (round["rows"][0]["margin"], round["rows"][0]["rank"], round["rows"][0]["probability"]) == (0.1235, 2, 0.1)
    trace.add(round_of([5]))
    assert trace.rounds[1]["rows"] == []


@given(text=unicode, lengths=cuts)
def test_what_rounds_add_is_the_text(tokenizer: TokenizerWrapper, text: str, lengths: list[int]):
    trace = new(tokenizer)
    play(trace, cut(encode_text(tokenizer, text), lengths))
    assert text.startswith("".join(round["added"] for round in trace.rounds))


def test_json_does_not_change_when_the_run_goes_on(tokenizer: TokenizerWrapper):
    """The page gets it from another thread."""
    trace = new(tokenizer)
    trace.add(round_of([9690]))
    shown = trace.to_json()
    before = json.dumps(shown)
    trace.add(round_of([28, 29]))
    assert json.dumps(shown) == before


@given(some=st.lists(rounds(), max_size=4), drafter=st.sampled_from(["mtp", "lookup", "plain"]))
def test_json_can_be_written(tokenizer: TokenizerWrapper, some: list[Round], drafter: str):
    trace = new(tokenizer, drafter)
    trace.add(Prefilled(3, 0.1))
    for event in some:
        trace.add(Draft(event.drafted, event.probabilities, event.draft_seconds))
        shown = json.loads(json.dumps(trace.to_json(), allow_nan=False))
        assert [token["id"] for token in shown["pending"]] == list(event.drafted)
        trace.add(event)
    trace.add(Done("budget"))
    shown = json.loads(json.dumps(trace.to_json(), allow_nan=False))
    assert shown["token_ids"] == [i for event in some for i in event.committed]
    assert len(shown["rounds"]) == shown["stats"]["rounds"] + shown["stats"]["first"] == len(some)
    assert shown["finish"] == "budget"


def rejected(count: int) -> Round:
    return Round(tuple([5] * count), (), 0, 6, "correction", 1.0, 0.1, 0.2)


def test_a_head_of_which_nothing_is_accepted_is_reported(tokenizer: TokenizerWrapper):
    trace = new(tokenizer, "mtp")
    trace.add(rejected(FAULT_AFTER - 1))
    assert trace.warnings == []  # may be bad luck
    trace.add(rejected(1))
    (line,) = trace.warnings
    assert "\n" not in line
    assert "head" in line
    assert trace.to_json()["warnings"] == [line]
    trace.add(round_of([5, 6]))  # one accepted after all
    assert trace.warnings == []


@pytest.mark.parametrize("drafter", ["lookup", "plain"])
def test_other_drafters_may_find_nothing(tokenizer: TokenizerWrapper, drafter: str):
    trace = new(tokenizer, drafter)
    trace.add(rejected(10 * FAULT_AFTER))
    assert trace.warnings == []

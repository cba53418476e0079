"""Batched rounds: at one batch size a text's bits depend on no slot, no neighbour and no draft."""

import random
from hashlib import sha256

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtp_mlx.backbone import Backbone
from mtp_mlx.batched import capacity, decode
from mtp_mlx.decode import plain, speculative
from mtp_mlx.drafters.together import Text, Together, together
from mtp_mlx.events import Done, Draft, Prefilled, Round
from mtp_mlx.head import HeadConfig, MTPHead
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.prompt import encode
from mtp_mlx.tasks import TASKS

PREFIX = list(range(300, 340))
WIDTH = 4


class Recorder(Backbone):
    """A backbone that keeps the bits of every logit row of a pass: (slots, width) of them."""

    def __init__(self, backbone):
        super().__init__(backbone.model, backbone.tokenizer, backbone.path)
        self.passes = []

    def logits(self, hidden):
        logits = super().logits(hidden)
        self.passes.append([[sha256(row).digest() for row in slot] for slot in np.array(logits)])
        return logits


class Watched(Together):
    """Drafts as another does, or at random where there is none, and notes the slot of each text."""

    def __init__(self, inner=None, *, seed=0):
        self.inner, self.random, self.slots = inner, random.Random(seed), {}

    def start(self, slot, text):
        self.slots[text.key] = slot
        if self.inner:
            self.inner.start(slot, text)

    def draft(self, texts, kv, length):
        if self.inner:
            return self.inner.draft(texts, kv, length)
        counts = [0 if text is None else self.random.randint(0, min(length, text.left - 1)) for text in texts]
        return [Draft(tuple(self.random.choices(range(3000), k=n))) for n in counts]


def run(backbone, prompts, *, drafters=None, size=3, width=WIDTH, prefix=PREFIX, budget=7, **options):
    """For each key its ids, the bits of each logit row that a round committed, its drafts, and what its events were."""
    recorder, watched = Recorder(backbone), Watched(drafters)
    texts = [Text(key, [*prefix, *ids], budget) for key, ids in prompts.items()]
    ids, rows, drafts, kinds = ({key: [] for key in prompts} for _ in range(4))
    arguments = {"drafters": watched, "prefix": prefix, "size": lambda _: size, "width": width, **options}
    for key, event in decode(recorder, texts, draft_length=width - 1, **arguments):
        kinds[key].append(type(event))
        if isinstance(event, Round):
            n = len(event.committed)
            ids[key] += event.committed
            if event.kind != "first":
                rows[key] += recorder.passes[-1][watched.slots[key]][:n]
                drafts[key].append((event.drafted, event.probabilities))
    return ids, rows, drafts, kinds


def prompts_of(lengths, seed=0):
    draw = random.Random(seed)
    return {i: [draw.randrange(500, 4000) for _ in range(n)] for i, n in enumerate(lengths)}


@pytest.fixture(scope="module")
def pipeline(tiny):
    mx.random.seed(7)
    head = MTPHead(HeadConfig.for_backbone(tiny, kv_layers=(1, 3)), mx.arange(0, 4000, 3))
    head.copy_from(tiny)
    return Pipeline(tiny, head)


@settings(max_examples=5)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=6), st.integers(0, 99), st.integers(1, 9))
def test_bits_depend_on_no_neighbour_and_no_slot(tiny, lengths, seed, budget):
    """All together, in another order, and each alone: with other drafts each time."""
    prompts = prompts_of(lengths, seed)
    ids, rows, _, kinds = run(tiny, prompts, budget=budget)
    backwards = run(tiny, dict(reversed(prompts.items())), budget=budget)
    assert backwards[:2] == (ids, rows)
    for key, prompt in prompts.items():
        alone = run(tiny, {key: prompt}, budget=budget, drafters=Together())
        assert (alone[0][key], alone[1][key]) == (ids[key], rows[key])
        assert len(ids[key]) == budget or ids[key][-1] in tiny.eos
        assert kinds[key][0] is Prefilled
        assert kinds[key][-1] is Done
        assert set(kinds[key][1:-1]) == {Round}


@pytest.mark.parametrize("name", ["mtp", "auto", "lookup", "plain"])
def test_drafts_depend_on_no_neighbour_and_no_slot(pipeline, name):
    """So a text's rounds are the same too, in every bit of what the drafter thought likely."""
    prompts = prompts_of([5, 40, 5, 12, 33])
    drafters = together(pipeline.drafter(name))
    ids, rows, drafts, _ = run(pipeline.backbone, prompts, drafters=drafters)
    assert run(pipeline.backbone, dict(reversed(prompts.items())), drafters=drafters)[:3] == (ids, rows, drafts)
    for key in (0, 4):
        alone = run(pipeline.backbone, {key: prompts[key]}, drafters=drafters)
        assert (alone[0][key], alone[2][key]) == (ids[key], drafts[key])
    assert any(drafted for rounds in drafts.values() for drafted, _ in rounds) or name in ("lookup", "plain")


def test_the_head_drafts_for_many_what_it_drafts_for_one(pipeline):
    """The same ids as its loop over one text, which has other shapes: this model has no near-ties here."""
    prompts = prompts_of([5, 40, 12])
    _, _, drafts, _ = run(pipeline.backbone, prompts, drafters=together(pipeline.drafter("mtp")))
    for key, prompt in prompts.items():
        events = speculative(
            pipeline.backbone, [*PREFIX, *prompt], drafter=pipeline.drafter("mtp"), max_tokens=7, width=WIDTH
        )
        alone = [event for event in events if isinstance(event, Round) and event.kind != "first"]
        assert [drafted for drafted, _ in drafts[key]] == [round.drafted for round in alone]
        for (_, ours), round in zip(drafts[key], alone, strict=True):
            assert ours == pytest.approx(round.probabilities, rel=1e-3)


def test_a_drafter_that_is_right_is_accepted_whole(tiny):
    prompts = prompts_of([5, 40, 12, 7, 9])
    ids = run(tiny, prompts, drafters=Together(), budget=9)[0]

    class Knows(Together):
        def draft(self, texts, kv, length):
            return [
                Draft() if text is None else Draft(tuple(ids[text.key][9 - text.left :][: min(length, text.left - 1)]))
                for text in texts
            ]

    again, _, drafts, _ = run(tiny, prompts, drafters=Knows(), budget=9)
    assert again == ids
    assert {len(rounds) for rounds in drafts.values()} == {2}  # 4 + 4 after the first


def test_texts_are_those_of_the_loop_over_one(tiny):
    """Not promised bit for bit, as the shapes differ; this model has no near-ties here."""
    prompts = prompts_of([3, 60, 20, 110])
    ids = run(tiny, prompts)[0]
    for key, prompt in prompts.items():
        events = plain(tiny, [*PREFIX, *prompt], max_tokens=7)
        assert ids[key] == [i for event in events if isinstance(event, Round) for i in event.committed]


def test_capacities_do_not_mix_and_little_is_read_ahead(tiny, monkeypatch):
    """A text's capacity is its own, whoever is beside it; an endless source is no trouble."""
    assert [capacity(n, 7, WIDTH) for n in (1, 112, 113, 176, 177, 240, 241)] == [128, 128, 192, 192, 256, 256, 384]
    monkeypatch.setattr("mtp_mlx.batched.AHEAD", 6)
    sizes, read, done = [], [], []

    def endless():
        while True:
            read.append(len(read))
            yield Text(read[-1], [*PREFIX, *range(900, 900 + (5 if len(read) % 3 else 100))], 2)

    def size(rows):
        sizes.append(rows)
        return 2

    for key, event in decode(tiny, endless(), drafters=Together(), prefix=PREFIX, size=size, width=2, draft_length=0):
        if isinstance(event, Done):
            done.append(key)
            assert len(read) - len(done) <= 6 + 4
        if len(done) == 30:
            break
    assert sizes[:2] == [128, 192]
    assert set(range(12)) <= set(done)


def test_it_stops_with_the_texts_in_hand(tiny):
    begun, done = set(), []
    texts = [Text(key, [*PREFIX, 900 + key], 5) for key in range(9)]
    arguments = {"drafters": Together(), "prefix": PREFIX, "size": lambda _: 2, "width": 2, "draft_length": 0}
    for key, event in decode(tiny, texts, stopping=lambda: bool(done), **arguments):
        begun.add(key)
        if isinstance(event, Done):
            done.append(key)
    assert set(done) == begun
    assert 2 <= len(done) <= 4


def test_texts_that_end_with_their_first_token_make_room_for_others(tiny):
    texts = [Text(key, [*PREFIX, 900 + key], 1 + key % 2) for key in range(9)]
    arguments = {"drafters": Together(), "prefix": PREFIX, "size": lambda _: 2, "width": 2, "draft_length": 0}
    told = list(decode(tiny, texts, **arguments))
    for key in range(9):
        kinds = [event.kind for other, event in told if other == key and isinstance(event, Round)]
        assert kinds == ["first", "plain"][: 1 + key % 2]
        assert [event for other, event in told if other == key][-1] == Done("budget")


def test_a_text_without_tokens_is_done_at_once(tiny):
    texts = [Text("empty", [], 0), Text("fine", [*PREFIX, 900], 1)]
    arguments = {"drafters": Together(), "prefix": PREFIX, "size": lambda _: 2, "width": 2, "draft_length": 0}
    told = list(decode(tiny, texts, **arguments))
    assert told[0] == ("empty", Done("stopped"))
    assert [key for key, event in told if isinstance(event, Done)] == ["empty", "fine"]


def test_what_takes_one_text_at_a_time_is_refused(pipeline, tiny):
    with pytest.raises(ValueError, match="--batch 1"):
        together(type("Standalone", (type(pipeline.drafter("plain")),), {"name": "standalone"})())
    slow = Backbone(tiny.model, tiny.tokenizer, tiny.path, row_by_row=True)
    with pytest.raises(ValueError, match="--batch 1"):
        list(decode(slow, [], drafters=Together(), prefix=PREFIX, size=lambda _: 2, width=2, draft_length=1))


def shipped(backbone, name):
    """Token ids of the examples of a task behind their common prefix, and that prefix."""
    prompts = [encode(backbone.tokenizer, TASKS[name], text) for text in TASKS[name].examples]
    prefix = prompts[0].ids[: prompts[0].prefix]
    return {i: prompt.ids[len(prefix) :] for i, prompt in enumerate(prompts)}, prefix


def test_the_shipped_model_keeps_the_promise(backbone):
    prompts, prefix = shipped(backbone, "proofread")
    prompts = {key: prompts[key] for key in (0, 3)}
    arguments = {"prefix": prefix, "size": 3, "width": 3, "budget": 4}
    ids, rows, _, _ = run(backbone, prompts, **arguments)
    alone = run(backbone, {3: prompts[3]}, drafters=Together(), **arguments)
    assert (alone[0][3], alone[1][3]) == (ids[3], rows[3])


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize("name", sorted(TASKS))
def test_the_shipped_model_keeps_the_promise_at_many_sizes(backbone, name, size):
    prompts, prefix = shipped(backbone, name)
    for width in (2, 5, 8):
        arguments = {"prefix": prefix, "size": size, "width": width, "budget": 12}
        ids, rows, _, _ = run(backbone, prompts, **arguments)
        assert run(backbone, dict(reversed(prompts.items())), **arguments)[:2] == (ids, rows)
        for key, prompt in prompts.items():
            alone = run(backbone, {key: prompt}, drafters=Together(), **arguments)
            assert (alone[0][key], alone[1][key]) == (ids[key], rows[key])

"""The promise: committed logits are plain decode's, bit for bit, whatever is drafted."""

import json
import random
from hashlib import sha256
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.generate import generate_step

from mtp_mlx.backbone import Backbone
from mtp_mlx.decode import plain, speculative
from mtp_mlx.drafters.base import Drafter
from mtp_mlx.events import Done, Draft, Prefilled, Round
from mtp_mlx.prompt import encode
from mtp_mlx.tasks import TASKS

DATA = Path(__file__).parent / "data"
WIDTHS = range(2, 9)


class Recorder(Backbone):
    """A backbone that keeps the bits of every logit row it computes, pass by pass, that of the prompt first."""

    def __init__(self, backbone):
        super().__init__(backbone.model, backbone.tokenizer, backbone.path, compiled=backbone.compiled)
        self.passes = []
        self.in_pass = False

    def forward(self, ids, kv, *, width):
        self.in_pass = True
        result = super().forward(ids, kv, width=width)
        self.in_pass = False
        self.passes.append(bits(result.logits))
        return result

    def logits(self, hidden):
        logits = super().logits(hidden)
        if not self.in_pass:
            self.passes.append(bits(logits))
        return logits


def bits(logits):
    """What tells rows (n, vocab) of equal bits from others."""
    return [sha256(np.ascontiguousarray(row)).digest() for row in np.array(logits)]


class Scripted(Drafter):
    """Drafts what the backbone will write (``text``), except where ``right`` says no."""

    def __init__(self, text, right, vocab):
        self.text, self.right, self.vocab = text, right, vocab

    def draft(self, context, length):
        done = len(context.tokens) - context.prompt_length
        ids = self.text[done : done + length]
        return Draft(tuple(i if self.right() else (i + 1) % self.vocab for i in ids))


class Random(Drafter):
    """Drafts any ids, end-of-text and control tokens among them."""

    def __init__(self, seed, vocab):
        self.random, self.vocab = random.Random(seed), vocab

    def draft(self, context, length):
        return Draft(tuple(self.random.choice([0, 1, 2, self.random.randrange(self.vocab)]) for _ in range(length)))


def committed(events):
    """The ids of a run."""
    return [i for event in events if isinstance(event, Round) for i in event.committed]


def decoded(recorder, events):
    """(ids, bits of each committed logit row, rounds) of a run."""
    recorder.passes.clear()
    rounds = [event for event in events if isinstance(event, Round)]
    ids = committed(rounds)
    rows = [row for r, rows in zip(rounds, recorder.passes, strict=True) for row in rows[: len(r.committed)]]
    return ids, rows, rounds


def drafters(text, vocab, seed):
    rng = random.Random(seed)
    return {
        "good": Scripted(text, lambda: True, vocab),
        "adversarial": Scripted(text, lambda: rng.random() < 0.6, vocab),
        "random": Random(seed, vocab),
    }


def prompts(backbone):
    """(ids, the task's own prefix, prefilled) of every text."""
    for task in TASKS.values():
        prefix = None
        for line in (DATA / f"{task.name}.jsonl").read_text(encoding="utf-8").splitlines():
            prompt = encode(backbone.tokenizer, task, json.loads(line)["text"])
            prefix = prefix or backbone.prefix(prompt.ids[: prompt.prefix])
            yield prompt.ids, prefix


KINDS = ("good", "adversarial", "random")


def compare(backbone, prompt, prefix=None, *, width, lengths, max_tokens, seed, kinds=KINDS):
    """Assert equal bits for every drafter and length; return how many logit rows were compared."""
    recorder = Recorder(backbone)
    vocab = backbone.args.vocab_size
    text, wanted, _ = decoded(recorder, plain(recorder, prompt, max_tokens=max_tokens, width=width, prefix=prefix))
    compared = 0
    for length in lengths:
        made = drafters(text, vocab, seed)
        for name, drafter in [(kind, made[kind]) for kind in kinds] if length else [("none", Drafter())]:
            numbers = {"max_tokens": max_tokens, "width": width, "draft_length": length}
            run = speculative(recorder, prompt, drafter=drafter, prefix=prefix, **numbers)
            ids, rows, rounds = decoded(recorder, run)
            assert ids == text, (name, width, length)
            assert rows == wanted, (name, width, length)
            compared += len(rows)
            if name == "good":
                assert len(rounds) == 1 + -(-(len(text) - 1) // (length + 1))
    return compared


def test_shipped_model_is_exact_on_a_sample(backbone):
    """A prompt a width, of both tasks, and as many tokens as a pass has rows: each row is committed somewhere."""
    sample = list(prompts(backbone))[::7]
    for width, (prompt, prefix) in zip(WIDTHS, sample, strict=True):
        numbers = {"width": width, "lengths": [width - 1], "max_tokens": max(width, 4), "seed": width}
        assert compare(backbone, prompt, prefix, **numbers, kinds=("good", KINDS[1 + width % 2]))


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_shipped_model_is_exact_on_the_whole_grid(backbone, width):
    forty = list(prompts(backbone))[-40:]  # 20 of each task; a few rounds each: 98 runs a prompt over all widths
    rows = 0
    for i, (prompt, prefix) in enumerate(forty):
        rows += compare(backbone, prompt, prefix, width=width, lengths=range(width), max_tokens=8, seed=i)
    print(f"width {width}: {rows} logit rows equal in every bit")


def test_speculative_decode_is_the_greedy_text_of_mlx_lm(backbone):
    """Our fixed-shape text is the model's: mlx-lm's own greedy decode gives it too (no near-tie in this prompt)."""
    prompt, prefix = next(iter(prompts(backbone)))
    theirs = []
    for token, _ in generate_step(mx.array(prompt), backbone.model, max_tokens=12):
        theirs.append(int(token))
        if token in backbone.eos:
            break
    assert committed(plain(backbone, prompt, max_tokens=12, prefix=prefix)) == theirs


@settings(max_examples=30)
@given(
    width=st.integers(2, 8),
    length=st.integers(0, 7),
    max_tokens=st.integers(1, 20),
    chances=st.lists(st.booleans(), min_size=1),
    prompt=st.lists(st.integers(3, 60), min_size=1, max_size=12),
    stop=st.integers(0, 19),
)
def test_any_draft_leaves_text_budget_and_stop_as_they_are(tiny, width, length, max_tokens, chances, prompt, stop):
    """Speculation never changes the rules (C7): ids, budget and end-of-text are plain decode's."""
    length = min(length, width - 1)
    vocab = tiny.args.vocab_size
    backbone = Backbone(tiny.model, tiny.tokenizer, tiny.path)
    free = committed(plain(backbone, prompt, max_tokens=20, width=width))
    backbone.eos = frozenset({free[stop % len(free)]})  # an end-of-text that does come up
    text = committed(plain(backbone, prompt, max_tokens=max_tokens, width=width))
    turn = iter(range(10**6))
    drafter = Scripted(free + [0] * 8, lambda: chances[next(turn) % len(chances)], vocab)
    events = list(
        speculative(backbone, prompt, drafter=drafter, max_tokens=max_tokens, width=width, draft_length=length)
    )
    assert isinstance(events[0], Prefilled)
    assert isinstance(events[-1], Done)
    first, *rounds = [e for e in events if isinstance(e, Round)]
    assert (first.kind, first.committed) == ("first", (free[0],))
    ids = committed(events)
    assert ids == text
    assert len(ids) <= max_tokens
    assert not set(ids[:-1]) & backbone.eos
    assert events[-1].reason == ("end" if ids[-1] in backbone.eos else "budget")
    for r in rounds:
        assert len(r.drafted) <= length
        assert r.kind == (
            "end"
            if r.token is None
            else "plain"
            if not r.drafted
            else "bonus"
            if r.accepted == len(r.drafted)
            else "correction"
        )


def test_a_drafted_end_of_text_alone_does_not_stop(tiny):
    prompt = [5, 9, 7]
    recorder = Recorder(tiny)
    text, _, _ = decoded(recorder, plain(recorder, prompt, max_tokens=8))
    never = next(i for i in range(3, tiny.args.vocab_size) if i not in text)
    recorder.eos = frozenset({never})

    class Ends(Drafter):
        def draft(self, context, length):
            return Draft((never,) * length)

    ids, _, _ = decoded(recorder, speculative(recorder, prompt, drafter=Ends(), max_tokens=8))
    assert ids == text


def test_one_token_takes_no_pass_but_the_prompts(tiny):
    drafter = Scripted([], lambda: True, tiny.args.vocab_size)
    prefilled, first, done = speculative(tiny, [4, 5, 6], drafter=drafter, max_tokens=1)
    assert (prefilled.prompt_tokens, first.kind, len(first.committed), done) == (3, "first", 1, Done("budget"))
    ends = Backbone(tiny.model, tiny.tokenizer, tiny.path)
    ends.eos = frozenset(first.committed)
    assert [*speculative(ends, [4, 5, 6], drafter=drafter, max_tokens=9)][1:] == [first, Done("end")]


def test_cancel_stops_between_rounds(tiny):
    polls = iter([False, False, True])
    events = list(speculative(tiny, [4, 5], drafter=Drafter(), max_tokens=50, cancelled=lambda: next(polls)))
    assert events[-1] == Done("stopped")
    assert [e.kind for e in events if isinstance(e, Round)] == ["first", "plain", "plain"]


@pytest.mark.parametrize(
    ("prompt", "numbers"),
    [
        ([], {"max_tokens": 4}),
        ([1], {"max_tokens": 0}),
        ([1], {"max_tokens": -1}),
        ([1], {"max_tokens": 4, "width": 0}),
        ([1], {"max_tokens": 4, "width": 4, "draft_length": 4}),
        ([1], {"max_tokens": 4, "draft_length": -1}),
    ],
)
def test_numbers_that_make_no_sense_are_refused(tiny, prompt, numbers):
    with pytest.raises(ValueError):
        list(speculative(tiny, prompt, drafter=Drafter(), **numbers))


def test_row_by_row_gives_the_same_bits(tiny):
    slow = Recorder(tiny)
    slow.row_by_row = True
    fast = Recorder(tiny)
    prompt = [3, 4, 5, 6]
    text, _, _ = decoded(fast, plain(fast, prompt, max_tokens=12))
    drafter = Scripted(text, lambda: True, tiny.args.vocab_size)
    assert committed(speculative(slow, prompt, drafter=drafter, max_tokens=12)) == text


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_a_prefix_that_is_kept_gives_the_bits_of_one_made_anew(backbone, task):
    """A warm request's logits are a cold one's, and speculative decode's plain decode's."""
    recorder = Recorder(backbone)
    encoded = [encode(backbone.tokenizer, task, text) for text in ("i has went too the store", "Mom: call me")]
    kept = backbone.prefix(encoded[0].ids[: encoded[0].prefix])
    for prompt in encoded:
        cold = backbone.prefix(prompt.ids[: prompt.prefix])
        text, wanted, _ = decoded(recorder, plain(recorder, prompt.ids, max_tokens=4, prefix=cold))
        assert decoded(recorder, plain(recorder, prompt.ids, max_tokens=4, prefix=kept))[1] == wanted
        drafter = Scripted(text, lambda: True, backbone.args.vocab_size)
        run = speculative(recorder, prompt.ids, drafter=drafter, max_tokens=4, prefix=kept)
        assert decoded(recorder, run)[:2] == (text, wanted)


@pytest.mark.parametrize("cut", range(1, 10))
def test_text_after_a_prefix_is_the_whole_prompts(tiny, cut):
    prompt = [3, 4, 5, 6, 7, 8, 9, 40, 41, 2000]
    for most in (1, 2, 10):
        whole = committed(plain(tiny, prompt, max_tokens=most))
        assert committed(plain(tiny, prompt, max_tokens=most, prefix=tiny.prefix(prompt[:cut]))) == whole


@pytest.mark.parametrize("prompt", [[3, 5, 4, 6], [3, 4, 5], [3]])
def test_a_prefix_of_another_prompt_is_refused(tiny, prompt):
    with pytest.raises(ValueError, match="prefix"):
        list(plain(tiny, prompt, max_tokens=2, prefix=tiny.prefix([3, 4, 5])))

"""What training counts by teacher forcing is what decoding accepts."""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from lessons import RECIPE

from mtp_mlx.decode import speculative
from mtp_mlx.drafters.base import Context
from mtp_mlx.drafters.mtp import MTPDrafter
from mtp_mlx.drafters.standalone import StandaloneDrafter
from mtp_mlx.events import Round
from mtp_mlx.training.acceptance import Acceptance, describe
from mtp_mlx.training.features import read_features
from mtp_mlx.training.next_token import StandaloneStudent
from mtp_mlx.training.unroll import HeadStudent


def test_the_last_token_of_a_budget_is_never_drafted():
    """Four tokens, the first with the prompt, all drafts right: the second pass drafts the last one, or none."""
    for cut, additional in ((False, 2 / 2), (True, 1 / 2)):
        counted = Acceptance(1)
        counted.add("proofread", np.ones((4, 1), bool), cut=cut)
        assert counted.to_json()["additional"]["proofread"] == [additional]


def test_an_answer_that_comes_with_the_prompt_takes_no_pass():
    counted = Acceptance(2)
    counted.add("proofread", np.ones((1, 2), bool))
    assert counted.to_json()["additional"]["proofread"] == [0.0, 0.0]


def test_a_row_without_held_back_texts_says_so():
    row = {**Acceptance(2).to_json(), "step": 1, "loss": 2.0}
    assert "held back" in describe(row)
    assert "0.00" not in describe(row)


def test_evaluation_counts_what_drafting_accepts(tiny, features):
    """Teacher forcing from every position of an answer against the drafter itself."""
    examples = [f.answer_only() for f in read_features(features, held_back=False)][:2]
    recipe = replace(RECIPE, unroll=3)
    head = HeadStudent(tiny, recipe, examples)
    mx.eval(head.head.parameters())
    standalone = StandaloneStudent(tiny, recipe, examples)
    for student, drafter in (
        (head, MTPDrafter(head.head, tiny)),
        (standalone, StandaloneDrafter(standalone.drafter, tiny)),
    ):
        accepted = []
        for f in examples:
            ids = f.ids.tolist()
            for t in range(f.first, len(ids) - 1):
                kv = tiny.make_kv(len(ids) + 8)
                hidden = tiny.prefill(ids[:t], kv)
                context = Context(ids[: t + 1], kv, hidden, f.first + 1)
                drafter.start(replace(context, tokens=ids[: f.first + 1]))
                drafted = drafter.draft(context, 3).ids
                accepted.append(next((i for i, id in enumerate(drafted) if ids[t + 1 + i : t + 2 + i] != [id]), 3))
        by_task = student.evaluate(examples).to_json()
        tasks = {f.task for f in examples}
        assert set(by_task["by_task"]) == tasks
        counted = Acceptance(3)
        start = 0
        for f in examples:
            mine = accepted[start : start + f.anchors]
            start += f.anchors
            counted.add(f.task, np.arange(3) < np.array(mine)[:, None])
        assert counted.to_json()["accepted"] == pytest.approx(by_task["accepted"], abs=0.02)


def test_additional_tokens_per_pass_are_those_of_decoding(tiny, features):
    """Counted by teacher forcing, for each draft length, against the decode loop itself."""
    head = HeadStudent(tiny, replace(RECIPE, unroll=3), examples := read_features(features, held_back=False)[:2])
    mx.eval(head.head.parameters())
    compared = accepted = 0
    for f in (f.answer_only() for f in examples):
        prompt, answer = f.ids[: f.first + 1].tolist(), f.ids[f.first + 1 :].tolist()
        counted = head.evaluate([f]).to_json()["additional"][f.task]
        for length in (1, 2, 3):
            run = speculative(
                tiny, prompt, drafter=MTPDrafter(head.head, tiny), max_tokens=len(answer), draft_length=length
            )
            first, *rounds = [event for event in run if isinstance(event, Round)]
            if [id for r in (first, *rounds) for id in r.committed] == answer:  # no near-tie fell the other way
                assert counted[length - 1] == pytest.approx(sum(r.accepted for r in rounds) / len(rounds))
                compared += 1
                accepted += sum(r.accepted for r in rounds)
    assert compared > len(examples) and accepted > len(examples)

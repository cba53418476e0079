"""The fault lab: each bug changes the text, its right side is plain decode's, and what is recorded happens again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtp_mlx import request as requests
from mtp_mlx.backbone import Backbone
from mtp_mlx.decode import plain
from mtp_mlx.drafters.base import Context, Drafter
from mtp_mlx.events import Done, Draft, Event, Round
from mtp_mlx.faults import FAULTS, Penalised, PenalisedByDrafts
from mtp_mlx.lessons import ASSETS, CASES, pair
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.request import Request
from mtp_mlx.trace import Trace

RECORDED = json.loads((ASSETS / "lessons.json").read_text("utf-8"))["faults"]
PROMPT = [*range(500, 520)]
LOOP = {"max_tokens": 24, "width": 4}


class HalfRight(Drafter):
    """Drafts the right next token, a wrong one and an end of text."""

    def __init__(self, text: list[int], eos: int):
        self.text, self.eos = text, eos

    def draft(self, context: Context, length: int) -> Draft:
        done = len(context.tokens) - context.prompt_length
        right = self.text[done] if done < len(self.text) else 7
        return Draft((right, right + 1, self.eos)[:length])


def ids(events: Iterable[Event]) -> list[int]:
    return [id for event in events if isinstance(event, Round) for id in event.committed]


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.wrong is not fault.right])
def test_a_fault_changes_the_text_and_without_it_the_text_is_plain_decodes(tiny: Backbone, name: str):
    fault = FAULTS[name]
    alone = ids(fault.right(tiny, PROMPT, drafter=Drafter(), **LOOP))
    if name != "penalty":
        assert alone == ids(plain(tiny, PROMPT, **LOOP))
    drafter = HalfRight(alone, min(tiny.eos))
    assert ids(fault.right(tiny, PROMPT, drafter=drafter, **LOOP)) == alone
    assert ids(fault.wrong(tiny, PROMPT, drafter=drafter, **LOOP)) != alone
    # Where nothing is drafted there is nothing to get wrong: each of these bugs is one of speculation.
    assert ids(fault.wrong(tiny, PROMPT, drafter=Drafter(), **LOOP)) == alone


def test_a_penalty_falls_on_what_leads_to_a_row_and_on_no_more(tiny: Backbone):
    rows = []
    for kind in (Backbone, Penalised, PenalisedByDrafts):
        backbone = tiny if kind is Backbone else kind(tiny)
        kv = backbone.make_kv(4)
        rows.append(np.array(backbone.forward([5, 9], kv, width=2).logits))
    changed = [[set(np.flatnonzero(row != plain)) for row, plain in zip(one, rows[0], strict=True)] for one in rows[1:]]
    assert changed == [[{5}, {5, 9}], [{5, 9}, {5, 9}]]
    assert all(one[0][5] < rows[0][0][5] for one in rows[1:])


def test_a_hasty_trace_breaks_the_characters_that_a_round_ends_inside_of(tiny: Backbone):
    text = "ok 🎉"
    shown = []
    for kind in (Trace, FAULTS["emoji"].shown):
        trace = kind("proofread", "plain", 1, 0, 9, tiny.tokenizer.decode, tiny.eos)
        for id in tiny.tokenizer.encode(text, add_special_tokens=False):
            trace.add(Round((), (), 0, id, "plain", 1.0, 0.0, 0.0))
        shown.append(trace.text)
    assert shown[0] == text and "\ufffd" in shown[1] and "🎉" not in shown[1]


def test_a_request_can_ask_for_each_fault_and_for_no_other():
    assert set(FAULTS) == set(requests.FAULTS)
    with pytest.raises(ValueError, match="choose end, budget"):
        Request("proofread", "a", fault="none")


def test_a_run_with_a_fault_keeps_to_memory_and_stops_as_any_other(tiny: Backbone):
    pipeline = Pipeline(tiny)
    plain, stale = (
        pipeline.start(Request("proofread", "a b", drafter="lookup", fault=name)) for name in (None, "stale")
    )
    taken = [run.trace.memory["entries"]["KV cache"] for run in (plain, stale)]
    assert taken[1] - taken[0] == tiny.kv_nbytes(8 * stale.trace.max_tokens) - tiny.kv_nbytes(0)
    for name in FAULTS:
        stopped = pipeline.start(Request("proofread", "a b", drafter="lookup", fault=name), cancelled=lambda: True)
        assert [*stopped][-1][0] == Done("stopped") and stopped.trace.status == "stopped"


@pytest.mark.parametrize(("case", "recorded"), list(zip(CASES, RECORDED, strict=True)), ids=FAULTS)
def test_what_is_recorded_happens_again(shipped: Pipeline, case: Any, recorded: dict[str, Any]):
    again = pair(shipped, case)
    right, wrong = again["right"], again["wrong"]
    assert (right["token_ids"], right["text"]) != (wrong["token_ids"], wrong["text"])
    if mx.default_device() == mx.Device(mx.cpu):  # elsewhere the weights are of another type, and near-ties another's
        for which in ("right", "wrong"):
            known = recorded[which]
            assert (again[which]["token_ids"], again[which]["text"]) == (known["token_ids"], known["text"])
            assert again[which]["input"] == known["input"] == case.text

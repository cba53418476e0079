"""Text in, trace out: budgets, errors, memory, and what a trace says of a run."""

from dataclasses import replace

import mlx.core as mx
import pytest
from test_probe import Uneven

from mtp_mlx import pipeline as pipelines
from mtp_mlx import profiles
from mtp_mlx.costs import Costs
from mtp_mlx.drafters.base import Context
from mtp_mlx.events import Prefilled, Round
from mtp_mlx.head import HeadConfig, MTPHead, save_head
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.profiles import Profile, ProfileError
from mtp_mlx.prompt import TextError
from mtp_mlx.request import Request
from mtp_mlx.tasks import PROOFREAD


@pytest.fixture
def pipeline(tiny):
    return Pipeline(tiny)


def finish(pipeline, request):
    run = pipeline.start(request)
    text = "".join(added for _, added in run)
    return run.trace, text


def test_plain_lookup_and_mtp_write_the_same(tiny):
    mx.random.seed(1)
    head = MTPHead(HeadConfig.for_backbone(tiny, kv_layers=(1, 3)), mx.arange(4000))
    head.copy_from(tiny)
    pipeline = Pipeline(tiny, head)
    traces = [
        finish(pipeline, Request("proofread", "hello wrld", drafter=name, max_tokens=20))[0]
        for name in ("plain", "lookup", "mtp", "auto")
    ]
    assert all(t.token_ids == traces[0].token_ids for t in traces)
    assert all(len(t.token_ids) == t.stats.tokens for t in traces)
    assert traces[0].stats.drafted == 0 < traces[2].stats.drafted
    memory = traces[2].to_json()["memory"]
    assert memory["budget"] is None
    assert {"backbone weights", "KV cache", "task's own KV cache", "MTP head", "draft vocabulary"} == set(
        memory["entries"]
    )


def test_every_shipped_drafter_writes_the_models_text_in_fewer_passes(shipped):
    """The promise: the same ids as plain decode, and well under one pass a token with the head."""
    request = Request("proofread", PROOFREAD.examples[3], draft_length=7)
    runs = {name: finish(shipped, replace(request, drafter=name))[0] for name in ("mtp", "auto", "standalone")}
    wanted = finish(shipped, replace(request, drafter="plain", draft_length=0))[0]
    for name, trace in runs.items():
        assert trace.token_ids == wanted.token_ids, name
        assert trace.stats.rounds < wanted.stats.rounds, name
    assert runs["mtp"].stats.rounds < 0.7 * wanted.stats.rounds


def test_one_text_leaves_nothing_behind_for_the_next(tiny):
    """The MTP drafter is kept between requests: its drafts are those of a fresh one all the same."""
    head = MTPHead(HeadConfig.for_backbone(tiny, kv_layers=(1, 3)), mx.arange(50))
    head.copy_from(tiny)
    request = Request("summarize", "Leo: the blue door", max_tokens=6)
    used = Pipeline(tiny, head)
    finish(used, Request("proofread", "quite another zebra text", max_tokens=6))
    again, fresh = finish(used, request)[0], finish(Pipeline(tiny, head), request)[0]
    assert [r["drafted"] for r in again.rounds] == [r["drafted"] for r in fresh.rounds]


def test_streamed_text_is_the_decoded_ids(shipped):
    trace, text = finish(shipped, Request("proofread", PROOFREAD.examples[0], drafter="lookup"))
    ids = [i for i in trace.token_ids if i not in shipped.backbone.eos]
    assert text == trace.text == shipped.backbone.tokenizer.decode(ids)
    assert trace.finish == "end"
    assert "yesterday and bought three apples" in text


@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_the_budget_is_never_passed(pipeline, max_tokens):
    trace, _ = finish(pipeline, Request("summarize", "Mom: hi", drafter="lookup", max_tokens=max_tokens))
    assert len(trace.token_ids) == max_tokens
    assert trace.finish == "budget"


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 0},
        {"max_tokens": -1},
        {"draft_length": 8},
        {"draft_length": -1},
        {"width": 0},
        {"drafter": "oracle"},
        {"task": "translate"},
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_loads(options):
    with pytest.raises(ValueError) as caught:
        Request(**{"task": "proofread", "text": "hi", **options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", " \n\t ", "word " * 12_000])
def test_nothing_or_too_much_to_work_on(pipeline, text):
    with pytest.raises(TextError):
        pipeline.start(Request("proofread", text, drafter="plain"))


@pytest.mark.parametrize(
    "text",
    [
        "a\0b",
        "<|im_end|>\n<|im_start|>user",
        "<img src=x onerror=alert(1)>",
        "${1+1} {{7*7}}",
        "🎉👩‍👩‍👧",
        "안녕",
        "שלום",
    ],
)
def test_odd_text_gets_an_answer(pipeline, text):
    trace, _ = finish(pipeline, Request("proofread", text, drafter="lookup", max_tokens=5))
    assert trace.status == "done"


def test_mtp_without_a_head_is_refused(pipeline):
    with pytest.raises(TextError, match="mtp-mlx train"):
        pipeline.start(Request("proofread", "hi"))


def test_a_context_that_the_model_does_not_have_is_refused(pipeline):
    with pytest.raises(TextError):
        pipeline.start(Request("proofread", "hi", drafter="plain", max_tokens=100_000))


@pytest.fixture
def small_phone(monkeypatch):
    """A phone on which nothing fits."""

    def known():
        phone = Profile("matchbox", "Matchbox", ram_bytes=2**20, ai_reserved_bytes=2**10)
        return {"none": Profile("none", "This machine"), phone.key: phone}

    monkeypatch.setattr(profiles, "profiles", known)


def test_a_run_over_the_phones_budget_is_refused(pipeline, small_phone):
    with pytest.raises(ProfileError, match="Matchbox"):
        pipeline.start(Request("proofread", "hi", drafter="plain", profile="matchbox"))


def test_weights_over_the_phones_budget_are_never_loaded(tiny, small_phone, monkeypatch):
    monkeypatch.setattr(pipelines, "load_backbone", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(ProfileError, match="Matchbox"):
        pipelines.load(tiny.path, None, profile="matchbox")


def test_memory_over_the_budget_while_running_is_said(pipeline):
    run = pipeline.start(Request("proofread", "hi", drafter="plain", max_tokens=2))
    run.profile = Profile("matchbox", "Matchbox", ai_reserved_bytes=1)
    for event, _ in run:
        assert isinstance(event, Prefilled) or run.trace.warnings
    assert "Matchbox" in run.trace.warnings[0]


def test_a_device_that_is_not_exact_is_said_so_and_row_by_row_is_offered(tiny):
    trace, _ = finish(Pipeline(Uneven(tiny)), Request("proofread", "hi", drafter="lookup", max_tokens=2))
    assert "--row-by-row" in trace.warnings[0]
    slow = Uneven(tiny)
    slow.row_by_row = True
    trace, _ = finish(Pipeline(slow), Request("proofread", "hi", drafter="lookup", max_tokens=2))
    assert trace.warnings == []


def test_the_width_follows_what_a_tasks_texts_taught(pipeline, monkeypatch):
    """A drafter that finds nothing is given up, for this task; with time it is tried again."""
    monkeypatch.setattr(Pipeline, "costs", lambda *_: Costs({1: 1.0, 8: 1.3}, 0.0))
    lookup = pipeline.drafter("lookup")
    context = Context([1], pipeline.backbone.make_kv(1), mx.zeros((1, 1)), 1)

    def text(rounds):
        drafter, width = pipeline.paced(lookup, "proofread", width=None)
        drafter.start(context)
        for _ in range(rounds):
            draft = drafter.draft(context, width - 1)
            drafter.observe(context, Round(draft.ids, (), 0, 7, "plain", 0.0, 0.0, 0.0))
        return width

    assert [text(20) for _ in range(2)] == [8, 1]
    assert pipeline.paced(lookup, "summarize", width=None)[1] == 8
    assert 8 in [text(20) for _ in range(30)]


def test_load_opens_a_backbone_and_its_head(tiny, tmp_path):
    head = MTPHead(HeadConfig.for_backbone(tiny, kv_layers=(0, 2)), mx.arange(100))
    head.copy_from(tiny)
    save_head(head, tmp_path)
    loaded = pipelines.load(tiny.path, tmp_path)
    trace, _ = finish(loaded, Request("proofread", "hi", max_tokens=4))
    assert len(trace.token_ids) == 4


def test_the_ledger_counts_the_kv_cache_that_is_made(pipeline, tiny):
    kv = tiny.make_kv(200)
    tiny.prefill([1, 2, 3], kv)
    assert pipeline.ledger(rows=200).entries["KV cache"] == kv.nbytes

"""What a GPU gets, compiled passes and draft steps of one shape, on the CPU: the same promise, and nothing copied."""

import shutil

import mlx.core as mx
import pytest
from test_decode import committed, compare

from mtp_mlx.backbone import Backbone
from mtp_mlx.compiled import Compiled
from mtp_mlx.costs import Costs
from mtp_mlx.decode import plain, speculative
from mtp_mlx.drafters.base import Context, Proposal
from mtp_mlx.drafters.mtp import MTPDrafter
from mtp_mlx.drafters.paced import PacedDrafter
from mtp_mlx.drafters.standalone import StandaloneDrafter
from mtp_mlx.events import Draft, Round
from mtp_mlx.head import HeadConfig, MTPHead
from mtp_mlx.probe import probe
from mtp_mlx.standalone import Standalone, StandaloneConfig

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="on the CPU, MLX compiles with g++")

PROMPT = [11, 4, 901, 7, 22, 3000, 5, 17, 40]


@pytest.fixture(scope="module")
def compiled(tiny: Backbone) -> Backbone:
    return Backbone(tiny.model, tiny.tokenizer, tiny.path, compiled=True)


@pytest.fixture(scope="module")
def head(tiny: Backbone) -> MTPHead:
    mx.random.seed(7)
    head = MTPHead(HeadConfig.for_backbone(tiny, kv_layers=(1, 3)), mx.arange(0, 4000, 3))
    head.copy_from(tiny)
    head.pre.weight = mx.random.normal(head.pre.weight.shape) * 0.2
    return head


def begun(backbone: Backbone, tokens: list[int]) -> Context:
    kv = backbone.make_kv(len(tokens) + 40)
    return Context(list(tokens), kv, backbone.prefill(tokens[:-1], kv), len(tokens))


@pytest.mark.parametrize("prompt", [PROMPT, [5], list(range(40, 340))], ids=len)
def test_compiled_passes_are_exact_too(compiled: Backbone, prompt: list[int]):
    assert compare(compiled, prompt, width=4, lengths=[0, 1, 3], max_tokens=9, seed=1)
    assert probe(compiled, width=4, prompt=prompt).exact


def test_they_write_what_other_passes_write(tiny: Backbone, compiled: Backbone):
    texts = [committed(plain(one, PROMPT, max_tokens=12)) for one in (tiny, compiled)]
    assert texts[0] == texts[1]


def test_a_pass_writes_into_the_buffers_that_are_there(compiled: Backbone):
    """Peak memory of a pass hardly grows with the capacity."""

    def cost(rows: int) -> int:
        kv = compiled.make_kv(rows)
        compiled.prefill(PROMPT, kv)
        mx.eval(compiled.forward([1], kv, width=4).logits, kv.buffers)
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        mx.eval(compiled.forward([1], kv, width=4).logits, kv.buffers)
        return mx.get_peak_memory() - before

    all_layers = len(compiled.model.layers) * 2 * 2 * (8192 - 128) * 16 * 4  # bytes of the additional K and V rows
    assert cost(8192) - cost(128) < all_layers / 2


def test_a_full_cache_is_told(compiled: Backbone):
    kv = compiled.make_kv(60)
    compiled.prefill(list(range(3, 127)), kv)
    with pytest.raises(ValueError, match="128 rows cannot hold 132"):
        compiled.forward([1], kv, width=8)


def test_what_asks_for_a_value_is_called_as_it_is():
    calls = []

    def signed(x: mx.array) -> mx.array:
        calls.append(x)
        return x if x.item() > 0 else -x

    function = Compiled(signed)
    assert [function(mx.array(value)).item() for value in (2.0, -3.0, 5.0)] == [2.0, 3.0, 5.0]
    assert len(calls) == 4  # the first one was begun twice
    with pytest.raises(ValueError, match="no array"):
        Compiled(lambda x: raising("no array"))(mx.array(1))


def raising(message: str) -> None:
    raise ValueError(message)


def test_few_capacities_are_compiled_for(compiled: Backbone):
    capacities = {compiled.make_kv(rows).capacity for rows in range(1, 8192)}
    assert len(capacities) <= 14
    assert all(compiled.make_kv(rows).capacity >= rows for rows in range(1, 8192))


def test_compiled_steps_draft_what_others_draft(tiny: Backbone, compiled: Backbone, head: MTPHead):
    drafts = []
    for backbone in (tiny, compiled):
        drafter, context = MTPDrafter(head, backbone), begun(backbone, PROMPT)
        drafter.start(context)
        drafts.append(drafter.draft(context, 5))
    assert drafts[0].ids == drafts[1].ids
    assert drafts[0].probabilities == pytest.approx(drafts[1].probabilities, rel=1e-4)


def test_a_trace_is_of_one_text(compiled: Backbone, head: MTPHead):
    """The next text has other candidates and another capacity."""
    drafter, proposed = MTPDrafter(head, compiled), []
    for prompt in (PROMPT, [*range(40, 240), 4001], PROMPT):
        context = begun(compiled, prompt)
        drafter.start(context)
        proposed.append(drafter.draft(context, 5))
    assert proposed[0] == proposed[2] != proposed[1]


@pytest.mark.parametrize("paced", [False, True])
def test_a_pass_does_not_wait_for_its_draft(tiny: Backbone, compiled: Backbone, head: MTPHead, paced: bool):
    """The drafter hands out a draft in the making, and what comes of it is plain decode's text."""
    drafter = MTPDrafter(head, compiled)
    if paced:
        costs = Costs({4: 1.0}, 0.01)
        drafter = PacedDrafter(drafter, costs, width=4, chances=[0.9] * 3)
    context = begun(compiled, PROMPT)
    drafter.start(context)
    proposal = drafter.propose(context, 3)
    assert isinstance(proposal, Proposal)
    assert proposal.wait() == drafter.draft(context, 3)

    events = list(speculative(compiled, PROMPT, drafter=drafter, max_tokens=12, width=4))
    assert committed(events) == committed(plain(tiny, PROMPT, max_tokens=12, width=4))
    assert any(event.drafted for event in events if isinstance(event, Round))


def test_a_draft_is_waited_for_where_that_is_as_fast(tiny: Backbone, head: MTPHead):
    drafter, context = MTPDrafter(head, tiny), begun(tiny, PROMPT)
    drafter.start(context)
    assert isinstance(drafter.propose(context, 3), Draft)
    assert drafter.propose(context, 0) == Draft()


@pytest.mark.parametrize("prompt", [PROMPT, [5]], ids=len)
def test_the_standalone_drafter_has_the_same(tiny: Backbone, compiled: Backbone, prompt: list[int]):
    config = StandaloneConfig((0, 3), tiny.fingerprint, tiny.vocab_hash)
    rival = Standalone(tiny, config, mx.arange(3000))
    runs = [
        [*speculative(backbone, prompt, drafter=StandaloneDrafter(rival, backbone), max_tokens=16, width=4)]
        for backbone in (tiny, compiled)
    ]
    drafts = [[event.ids for event in events if isinstance(event, Draft)] for events in runs]
    assert drafts[0] == drafts[1]
    assert committed(runs[0]) == committed(runs[1])
    context = begun(compiled, prompt)
    drafter = StandaloneDrafter(rival, compiled)
    drafter.start(context)
    assert isinstance(drafter.propose(context, 3), Proposal)
    with pytest.raises(ValueError, match="cannot hold"):  # MLX itself would write past the end
        drafter.draft(context, 1000)

"""The decode loop: draft, verify in one pass, accept, commit. Read this first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter

import mlx.core as mx
import numpy as np

from mtp_mlx import accept
from mtp_mlx.backbone import Backbone, Prefix
from mtp_mlx.drafters.base import Context, Drafter
from mtp_mlx.events import Done, Draft, Event, Inspection, Kind, Prefilled, Round
from mtp_mlx.request import check_numbers


def speculative(
    backbone: Backbone,
    prompt: Sequence[int],
    *,
    drafter: Drafter,
    max_tokens: int,
    width: int = 8,
    draft_length: int | None = None,
    prefix: Prefix | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    look: Callable[[Context, Draft, mx.array], Inspection] | None = None,
) -> Iterator[Event]:
    """Greedy decode of ``prompt``: the backbone's own text, whatever the drafter proposes.

    The pass over the prompt gives the first token. Every pass after it has ``width`` rows and attends over one KV
    capacity, so that a position's logits are the same bits however many of the rows were drafted (``probe`` checks that
    on the device at hand).

    Args:
        prompt: token ids, at least one.
        max_tokens: the most tokens to commit, end-of-text included.
        width: rows of a verify pass: the last committed token and up to ``width - 1`` draft tokens.
        draft_length: the most tokens to draft in a round, at most and by default ``width - 1``.
        prefix: what the prompt begins with, if that is prefilled already; the same one gives the same bits.
        cancelled: asked once a round.
        look: given the context, the draft and the pass's logits (1 + drafted, vocab), outside the measured times.

    Yields:
        Prefilled and the Round of the first token, then for each round its Draft, its Inspection (with ``look``: of the
        first token, too) and its Round, then Done.
    """
    longest = width - 1 if draft_length is None else draft_length
    check_numbers(max_tokens=max_tokens, width=width, draft_length=longest)
    if not prompt:
        raise ValueError("the prompt is empty: give at least one token")
    if prefix is not None and tuple(prompt[: min(len(prefix.ids), len(prompt) - 1)]) != prefix.ids:
        raise ValueError("the prompt does not begin with the prefix, or is no longer than it: leave the prefix out")
    started = perf_counter()
    kv = backbone.make_kv(len(prompt) + max_tokens + width)
    if prefix is not None:
        kv.adopt(prefix.kv, len(prefix.ids))
    hidden = backbone.prefill(prompt[kv.length :], kv)  # (1, dim)
    logits = backbone.logits(hidden)  # (1, vocab)
    first = int(mx.argmax(logits))
    yield Prefilled(len(prompt), perf_counter() - started)

    context = Context([*prompt], kv, hidden, len(prompt))
    if look is not None:
        yield look(context, Draft(), logits)
    context.tokens.append(first)
    yield Round.first(first, margin=margin(logits[0]))

    left = max_tokens - 1
    started = perf_counter()
    drafter.start(context)
    while left > 0 and context.tokens[-1] not in backbone.eos:
        if cancelled():
            yield Done("stopped")
            return

        proposal = drafter.propose(context, min(longest, left - 1))
        proposed = perf_counter()
        rows = mx.concatenate([mx.array(context.tokens[-1:]), mx.array(proposal.ids, mx.int32)])  # (1 + drafted,)
        result = backbone.forward(rows, kv, width=width)
        choices = mx.argmax(result.logits, axis=-1)  # (1 + drafted,)
        if backbone.compiled:
            mx.async_eval(choices, result.hidden)  # the device is at work while the draft is told
        if isinstance(proposal, Draft):
            draft, drafted = proposal, proposed
        else:
            draft, drafted = proposal.wait(), perf_counter()
        launched = perf_counter()
        yield (draft := replace(draft, seconds=drafted - started))

        told = 0.0 if backbone.compiled else perf_counter() - launched  # a pass that is under way goes on meanwhile
        mx.eval(choices, result.hidden)
        accepted, token = accept.greedy(draft.ids, np.array(choices).tolist(), eos=backbone.eos)
        judged = accepted if token is not None else accepted - 1  # the row whose choice was committed last
        outcome = Round(
            drafted=draft.ids,
            probabilities=draft.probabilities,
            accepted=accepted,
            token=token,
            kind=kind(len(draft.ids), accepted, token),
            margin=margin(result.logits[judged]),
            draft_seconds=draft.seconds,
            verify_seconds=perf_counter() - drafted - told,
        )
        if look is not None:
            yield look(context, draft, result.logits)
        context.tokens.extend(outcome.committed)
        context.hidden = result.hidden[accepted : accepted + 1]
        kv.commit(accepted + 1)
        drafter.observe(context, outcome)
        left -= len(outcome.committed)
        yield outcome
        started = perf_counter()
    yield Done("end" if context.tokens[-1] in backbone.eos else "budget")


def plain(
    backbone: Backbone, prompt: Sequence[int], *, max_tokens: int, width: int = 8, prefix: Prefix | None = None
) -> Iterator[Event]:
    """The same passes with one row used: one token a pass."""
    return speculative(
        backbone, prompt, drafter=Drafter(), max_tokens=max_tokens, width=width, draft_length=0, prefix=prefix
    )


def margin(logits: mx.array) -> float:
    """The difference of the two largest of one row's logits (vocab,); a top-2 of all rows would cost 4 % of a pass."""
    best = mx.topk(logits, 2)  # (2,)
    return float(mx.abs(best[0] - best[1]))


def kind(drafted: int, accepted: int, token: int | None) -> Kind:
    """What the backbone's own token of a round is; see ``events.Round``."""
    if token is None:
        return "end"
    if drafted == 0:
        return "plain"
    return "bonus" if accepted == drafted else "correction"

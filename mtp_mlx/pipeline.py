"""Text in, trace out: the loaded model with its head, tasks and drafters, in the calling thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from mtp_mlx import weights
from mtp_mlx.backbone import Backbone, Prefix, load_backbone, nbytes
from mtp_mlx.costs import Costs, measure
from mtp_mlx.drafters.auto import AutoDrafter
from mtp_mlx.drafters.base import Context, Drafter
from mtp_mlx.drafters.lookup import LookupDrafter
from mtp_mlx.drafters.mtp import MTPDrafter
from mtp_mlx.drafters.paced import Chances, PacedDrafter
from mtp_mlx.drafters.standalone import StandaloneDrafter
from mtp_mlx.events import Draft, Event, Inspection
from mtp_mlx.faults import FAULTS, Fault
from mtp_mlx.head import MTPHead, load_head
from mtp_mlx.inspection import judge
from mtp_mlx.probe import ProbeResult, probe, probe_batch
from mtp_mlx.profiles import Ledger, Profile, admit, get, watch
from mtp_mlx.prompt import Prompt, TextError, encode
from mtp_mlx.request import DRAFT_LENGTH, DRAFTERS, MAX_WIDTH, WIDTH, Request
from mtp_mlx.standalone import load_standalone
from mtp_mlx.tasks import TASKS
from mtp_mlx.trace import Trace


@dataclass
class Run:
    """One request, ready to decode: iterate it for events; its trace grows as they come."""

    trace: Trace
    events: Iterator[Event]
    profile: Profile

    def __iter__(self) -> Iterator[tuple[Event, str]]:
        """Each event with the text that it adds; memory is watched as the run goes on."""
        for event in self.events:
            added = self.trace.add(event)
            if isinstance(event, Inspection):
                continue  # it is shown with the round that comes next
            if warning := watch(self.profile, mx.get_active_memory()):
                self.trace.warn("memory", warning)
            yield event, added


class Pipeline:
    """A backbone, its head if there is one, and the drafters over them.

    Args:
        standalone: the folder of a standalone drafter, loaded when it is first asked for.
    """

    def __init__(self, backbone: Backbone, head: MTPHead | None = None, *, standalone: Path = weights.STANDALONE):
        self.backbone = backbone
        self.head = head
        self._standalone_folder = standalone
        self._mtp: MTPDrafter | None = None
        self._standalone: StandaloneDrafter | None = None
        self._probed: dict[tuple[int, int], ProbeResult] = {}
        self._costs: dict[str, Costs] = {}
        self._seen: dict[tuple[str, str], Chances] = {}  # by drafter and task
        self._widths: dict[tuple[str, str], int] = {}  # taken last, where nobody said which
        self._prefixes: dict[tuple[int, ...], Prefix] = {}

    def probe(self, width: int, *, texts: int = 1) -> ProbeResult:
        """Whether decoding so many texts at this width is exact on this device; computed once for each."""
        if (width, texts) not in self._probed:
            one = texts == 1
            result = probe(self.backbone, width=width) if one else probe_batch(self.backbone, texts=texts, width=width)
            self._probed[width, texts] = result
        return self._probed[width, texts]

    def ledger(self, *, rows: int, prefix: int = 0) -> Ledger:
        """What a run takes whose KV cache holds ``rows`` rows, in bytes; a standalone drafter has all of it twice.

        Args:
            prefix: how many ids the task's prompts begin with, which are kept in a KV cache of their own.
        """
        entries = {"backbone weights": self.backbone.nbytes, "KV cache": self.backbone.kv_nbytes(rows)}
        if prefix:
            entries["task's own KV cache"] = self.backbone.kv_nbytes(prefix)
        if self.head is not None:
            entries["MTP head"] = nbytes(self.head)
            entries["draft vocabulary"] = self._head_drafter(self.head).vocabulary.nbytes
        if self._standalone is not None:
            entries |= self._standalone.ledger(rows)
        return Ledger(entries)

    def drafter(self, name: str) -> Drafter:
        """A drafter by its name: mtp, auto, standalone, lookup or plain.

        Raises:
            TextError: no such drafter, or ``mtp`` or ``auto`` without a head.
            WeightsError: no standalone drafter where it should be, or one for another backbone.
        """
        if name == "plain":
            return Drafter()
        if name == "lookup":
            return LookupDrafter()
        if name == "standalone":
            return self.standalone()
        if name not in ("mtp", "auto"):
            raise TextError(f"no drafter is called {name!r}: choose {', '.join(DRAFTERS)}")
        if self.head is None:
            raise TextError("no MTP head is loaded: train one (mtp-mlx train), or choose lookup or plain")
        mtp = self._head_drafter(self.head)
        return mtp if name == "mtp" else AutoDrafter(mtp, self.head.config.copy_chance)

    def _head_drafter(self, head: MTPHead) -> MTPDrafter:
        if self._mtp is None:  # its output rows are gathered once, not at every request
            self._mtp = MTPDrafter(head, self.backbone)
        return self._mtp

    def standalone(self) -> StandaloneDrafter:
        """The standalone drafter, loaded when it is first asked for.

        Raises:
            WeightsError: none where it should be, or one for another backbone.
        """
        if self._standalone is None:
            drafter = load_standalone(self._standalone_folder, self.backbone)
            self._standalone = StandaloneDrafter(drafter, self.backbone)
        return self._standalone

    def costs(self, drafter: Drafter) -> Costs:
        """What passes and drafts of this drafter cost here; measured once, in about a second."""
        if drafter.name not in self._costs:
            self._costs[drafter.name] = measure(self.backbone, drafter)
        return self._costs[drafter.name]

    def chances(self, name: str, task: str) -> Sequence[float]:
        """How often each position of a draft is accepted if those before it are, as measured on texts never trained on.

        ``lookup``: for a copy that goes on after a match of one token. One half, where nothing was measured.
        """
        config: Any = None
        if name in ("mtp", "auto") and self.head is not None:
            config = self.head.config
        elif name == "standalone":
            config = self.standalone().drafter.config
        known = {} if config is None else config.acceptance
        if name == "lookup" and self.head is not None:
            known = {task: self.head.config.copy_chance}
        measured = known.get(task, (0.5,))
        return (*measured, *[measured[-1]] * MAX_WIDTH)[: MAX_WIDTH - 1]

    def paced(self, drafter: Drafter, task: str, *, width: int | None) -> tuple[Drafter, int]:
        """A drafter asked for as many tokens as pay, and the width of its passes: ``width``, or the one that pays.

        Both go by what was accepted in the texts of this task so far; the width that it took last is its usual one.
        """
        if drafter.name == "plain":
            return drafter, WIDTH if width is None else width
        key, costs = (drafter.name, task), self.costs(drafter)
        seen = self._seen.setdefault(key, Chances(self.chances(*key)))
        if width is None:
            width = self._widths[key] = costs.best_width(seen.now, usual=self._widths.get(key, WIDTH))
        elif width not in costs.passes:
            known = [w for w in costs.passes if w <= width]
            costs = replace(costs, passes={**costs.passes, width: costs.passes[max(known)]})
        return PacedDrafter(drafter, costs, width=width, chances=seen.now, told=seen), width

    def prompt(self, request: Request) -> Prompt:
        """The token ids of a request's prompt."""
        return encode(self.backbone.tokenizer, TASKS[request.task], request.text)

    def prefix(self, prompt: Prompt) -> Prefix:
        """What comes before the text in a task's prompts, prefilled once a task."""
        ids = tuple(prompt.ids[: prompt.prefix])
        if ids not in self._prefixes:
            self._prefixes[ids] = self.backbone.prefix(ids)
        return self._prefixes[ids]

    def max_tokens(self, request: Request, prompt: Prompt) -> int:
        """The most tokens to write: what is asked for, or the task's own budget.

        Raises:
            TextError: they do not fit the model's positions.
        """
        usual = _fault(request).max_tokens or TASKS[request.task].default_max_tokens(prompt.text_tokens)
        most = request.max_tokens or usual
        room = self.backbone.args.max_position_embeddings
        if room and len(prompt.ids) + most > room:
            raise TextError(f"{len(prompt.ids):,} prompt tokens and {most:,} more pass the model's {room:,}")
        return most

    def start(self, request: Request, *, cancelled: Callable[[], bool] = lambda: False) -> Run:
        """Check a request and make its run: what is the text's own is computed as the run is iterated.

        Raises:
            TextError: empty or over-long text, or an unknown drafter.
            WeightsError: a standalone drafter is asked for, and there is none for this backbone.
            ProfileError: the run does not fit the profile's memory budget.
        """
        prompt = self.prompt(request)
        drafter, width, length, pace = self.drafter(request.drafter), request.rows, request.drafts, None
        if request.draft_length == "auto" and self.backbone.row_by_row:  # there every drafted token costs a pass
            length = min(length, DRAFT_LENGTH)
        elif request.draft_length == "auto":
            drafter, width = self.paced(drafter, request.task, width=request.width)
            length = width - 1
            pace = drafter.to_json() if isinstance(drafter, PacedDrafter) else None
        max_tokens = self.max_tokens(request, prompt)
        profile, fault = get(request.profile), _fault(request)
        decode, shown = (fault.right, Trace) if request.fixed else (fault.wrong, fault.shown)
        rows = len(prompt.ids) + max_tokens + width
        if fault.keeps and not request.fixed:
            rows += max_tokens * width
        ledger = self.ledger(rows=rows, prefix=prompt.prefix)
        admit(profile, ledger)

        def look(context: Context, draft: Draft, logits: mx.array) -> Inspection:
            return Inspection(drafter.look(context, draft), judge(logits, draft.ids))

        trace = shown(
            task=request.task,
            input=request.text,
            drafter=request.drafter,
            width=width,
            draft_length=length,
            max_tokens=max_tokens,
            decode=self.backbone.tokenizer.decode,
            eos=self.backbone.eos,
            prompt=prompt.ids if request.inspect else (),
            pace=pace,
            memory={"profile": profile.name, "budget": profile.budget_bytes, "entries": ledger.entries},
        )
        if not (result := self.probe(width)).exact:
            trace.warn("exactness", str(result))
        events = decode(
            self.backbone,
            prompt.ids,
            drafter=drafter,
            max_tokens=max_tokens,
            width=width,
            draft_length=length,
            prefix=self.prefix(prompt),
            cancelled=cancelled,
            look=look if request.inspect else None,
        )
        return Run(trace, events, profile)


def _fault(request: Request) -> Fault:
    """The bug that a request asks for, or none: decoding as it should be."""
    return FAULTS[request.fault] if request.fault else Fault()


def load(
    backbone: Path = weights.BACKBONE,
    head: Path | None = weights.HEAD,
    *,
    standalone: Path = weights.STANDALONE,
    profile: str = "none",
    row_by_row: bool = False,
    report: weights.Report = weights.unheard,
) -> Pipeline:
    """Load a backbone and its head (None: no head), if they fit the profile's memory budget.

    Args:
        report: hears of the backbone's stages (see ``load_backbone``) and of ``head``.

    Raises:
        WeightsError: missing, damaged, or not made for one another.
        ProfileError: too large for the profile; nothing was loaded.
    """
    folders = {"backbone weights": backbone} | ({} if head is None else {"MTP head": head})
    dense = mx.default_device() == mx.Device(mx.cpu)
    sizes = {name: weights.memory(folder, dense=dense) for name, folder in folders.items()}
    packed = sum(weights.memory(folder, dense=False) for folder in folders.values())
    alternatives = {"the weights as they are in the files, on a GPU": packed} if dense else None
    admit(get(profile), Ledger(sizes), alternatives=alternatives)
    model = load_backbone(backbone, row_by_row=row_by_row, report=report)
    mx.clear_cache()
    report("head", 0, 0)
    return Pipeline(model, None if head is None else load_head(head, model), standalone=standalone)

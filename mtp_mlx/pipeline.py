"""Text in, trace out: the loaded model with its head, tasks and drafters, in the calling thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from mtp_mlx import weights
from mtp_mlx.backbone import Backbone, load_backbone, nbytes
from mtp_mlx.decode import speculative
from mtp_mlx.drafters.auto import AutoDrafter
from mtp_mlx.drafters.base import Context, Drafter
from mtp_mlx.drafters.lookup import LookupDrafter
from mtp_mlx.drafters.mtp import MTPDrafter
from mtp_mlx.drafters.standalone import StandaloneDrafter
from mtp_mlx.events import Draft, Event, Inspection
from mtp_mlx.head import MTPHead, load_head
from mtp_mlx.inspection import judge
from mtp_mlx.probe import ProbeResult, probe
from mtp_mlx.profiles import Ledger, Profile, admit, get, watch
from mtp_mlx.prompt import Prompt, TextError, encode
from mtp_mlx.request import DRAFTERS, Request
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
        self._probed: dict[int, ProbeResult] = {}

    def probe(self, width: int) -> ProbeResult:
        """Whether decoding at this width is exact on this device; computed once a width."""
        if width not in self._probed:
            self._probed[width] = probe(self.backbone, width=width)
        return self._probed[width]

    def ledger(self, *, rows: int) -> Ledger:
        """What a run takes whose KV cache holds ``rows`` rows, in bytes; a standalone drafter has all of it twice."""
        entries = {"backbone weights": self.backbone.nbytes, "KV cache": self.backbone.kv_nbytes(rows)}
        if self.head is not None:
            dim = self.backbone.args.hidden_size
            entries["MTP head"] = nbytes(self.head)
            entries["draft vocabulary"] = self.head.draft_vocab.size * dim * self.backbone.dtype.size
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
        if self._mtp is None:  # its output rows are gathered once, not at every request
            self._mtp = MTPDrafter(self.head, self.backbone)
        return self._mtp if name == "mtp" else AutoDrafter(self._mtp, self.head.config.copy_chance)

    def standalone(self) -> StandaloneDrafter:
        """The standalone drafter, loaded when it is first asked for.

        Raises:
            WeightsError: none where it should be, or one for another backbone.
        """
        if self._standalone is None:
            drafter = load_standalone(self._standalone_folder, self.backbone)
            self._standalone = StandaloneDrafter(drafter, self.backbone)
        return self._standalone

    def prompt(self, request: Request) -> Prompt:
        """The token ids of a request's prompt."""
        return encode(self.backbone.tokenizer, TASKS[request.task], request.text)

    def max_tokens(self, request: Request, prompt: Prompt) -> int:
        """The most tokens to write: what is asked for, or the task's own budget.

        Raises:
            TextError: they do not fit the model's positions.
        """
        most = request.max_tokens or TASKS[request.task].default_max_tokens(prompt.text_tokens)
        room = self.backbone.args.max_position_embeddings
        if room and len(prompt.ids) + most > room:
            raise TextError(f"{len(prompt.ids):,} prompt tokens and {most:,} more pass the model's {room:,}")
        return most

    def start(self, request: Request, *, cancelled: Callable[[], bool] = lambda: False) -> Run:
        """Check a request and make its run; nothing is computed before the run is iterated.

        Raises:
            TextError: empty or over-long text, or an unknown drafter.
            WeightsError: a standalone drafter is asked for, and there is none for this backbone.
            ProfileError: the run does not fit the profile's memory budget.
        """
        prompt = self.prompt(request)
        drafter = self.drafter(request.drafter)
        max_tokens = self.max_tokens(request, prompt)
        profile = get(request.profile)
        ledger = self.ledger(rows=len(prompt.ids) + max_tokens + request.width)
        admit(profile, ledger)

        def look(context: Context, draft: Draft, logits: mx.array) -> Inspection:
            return Inspection(drafter.look(context, draft), judge(logits, draft.ids))

        trace = Trace(
            task=request.task,
            input=request.text,
            drafter=request.drafter,
            width=request.width,
            draft_length=request.drafts,
            max_tokens=max_tokens,
            decode=self.backbone.tokenizer.decode,
            eos=self.backbone.eos,
            prompt=prompt.ids if request.inspect else (),
            memory={"profile": profile.name, "budget": profile.budget_bytes, "entries": ledger.entries},
        )
        if not (result := self.probe(request.width)).exact:
            trace.warn("exactness", str(result))
        events = speculative(
            self.backbone,
            prompt.ids,
            drafter=drafter,
            max_tokens=max_tokens,
            width=request.width,
            draft_length=request.drafts,
            cancelled=cancelled,
            look=look if request.inspect else None,
        )
        return Run(trace, events, profile)


def load(
    backbone: Path = weights.BACKBONE,
    head: Path | None = weights.HEAD,
    *,
    standalone: Path = weights.STANDALONE,
    profile: str = "none",
    row_by_row: bool = False,
) -> Pipeline:
    """Load a backbone and its head (None: no head), if they fit the profile's memory budget.

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
    model = load_backbone(backbone, row_by_row=row_by_row)
    mx.clear_cache()
    return Pipeline(model, None if head is None else load_head(head, model), standalone=standalone)

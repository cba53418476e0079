"""On-policy text: the backbone's own greedy answers to task prompts, generated in full batches, resumable."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import KVCache, make_prompt_cache
from tqdm import tqdm

from mtp_mlx.backbone import Backbone
from mtp_mlx.jsonl import read_jsonl
from mtp_mlx.prompt import TextError, encode
from mtp_mlx.tasks import TASKS, Task
from mtp_mlx.training.variety import MESSAGE
from mtp_mlx.training.wordings import WORDINGS

BATCH = 64
WINDOW = 512
JOIN = 16  # prompts that join the batch together: each join and its prefill copies the whole batch's KV cache
FILES = (
    f".jsonl files (objects with `text` and a `task`, {' or '.join(TASKS)}) or .txt files (a message a line, "
    f"{MESSAGE[0]} to {MESSAGE[1]} characters)"
)
HELD_BACK = 0.06  # the share of source documents that training never sees


class DataError(ValueError):
    """The training data cannot be used; the message says what to do."""


@dataclass(frozen=True)
class Example:
    """One prompt and the backbone's greedy answer (end-of-text included where it came within the budget).

    Attributes:
        start: where in the prompt the text begins; before it, all prompts of the wording are alike.
    """

    id: str
    task: str
    held_back: bool
    start: int
    prompt: list[int]
    answer: list[int]


def read_rows(folder: Path, *, tasks: Iterable[str] = tuple(TASKS)) -> list[dict[str, Any]]:
    """The rows of every ``*.jsonl`` of ``folder`` that have a ``text`` and one of the ``tasks``, without doubles.

    Raises:
        DataError: no such folder.
        JsonlError: a file or a line of one cannot be read.
    """
    if not folder.is_dir():
        raise DataError(f"no folder at {folder}: give one with {FILES}")
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for number, row in read_jsonl(path):
            if str(row.get("task")) in tasks and isinstance(row.get("text"), str):
                row["id"] = str(row.get("id", f"{path.stem}-{number}"))
                row.setdefault("kind", path.stem)
                rows.setdefault((row["task"], row["text"]), row)
    return list(rows.values())


def document(row: dict[str, Any]) -> str:
    """The source document of a row: its ``document``, or its id without the number of the part."""
    return row.get("document") or re.sub(r"(-\d+)+$", "", row["id"])


def is_held_back(row: dict[str, Any]) -> bool:
    """Whether a row is for evaluation only: all of a document or none, the same at every run."""
    return spread(document(row)) < HELD_BACK


def spread(key: str) -> float:
    """A number in [0, 1) that depends on ``key`` only."""
    return int(hashlib.sha256(key.encode()).hexdigest()[:12], 16) / 16**12


def choose(rows: Iterable[dict[str, Any]], *, per_task: int | None) -> list[dict[str, Any]]:
    """At most ``per_task`` rows of each task, the same ones in the same order at every run.

    The kinds of a task's rows take turns until they run out, so that a small choice is as broad as a large one.
    """
    kinds: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        kinds[row["task"], row.get("kind", "")].append(row)
    turns: dict[str, list[tuple[int, float, dict[str, Any]]]] = defaultdict(list)
    for (task, _), mine in kinds.items():
        mine.sort(key=lambda row: spread("row " + row["id"]))
        turns[task].extend((turn, spread(row["id"]), row) for turn, row in enumerate(mine))
    chosen = [taken for task in sorted(turns) for taken in sorted(turns[task], key=lambda t: t[:2])[:per_task]]
    return [row for *_, row in sorted(chosen, key=lambda t: t[:2])]


def wording(row: Mapping[str, Any]) -> Task:
    """The task as a row asks for it; wording 0 is the product's own."""
    return WORDINGS[row["task"]][row.get("wording", 0)]


def generate(
    backbone: Backbone,
    rows: list[dict[str, Any]],
    path: Path,
    *,
    max_text_tokens: int = 256,
    temperature: float = 0.0,
) -> None:
    """Append the backbone's answers to ``path``, one JSON object a row; rows that it holds already are skipped.

    Rows with an empty or over-long text are left out. Answers come in the order in which they end.

    Args:
        temperature: 0: the most likely tokens; above: sampled, by random numbers that depend on the row's id.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _mend(path)
    done = {example.id for example in read_examples(path)} if path.exists() else set()
    prompts = []
    for row in rows:
        if row["id"] in done:
            continue
        try:
            prompt = encode(backbone.tokenizer, wording(row), row["text"])
        except TextError:
            continue
        if prompt.text_tokens <= max_text_tokens:
            prompts.append((row, prompt))
    for start in range(0, len(prompts), WINDOW):  # alike in length: less padding
        prompts[start : start + WINDOW] = sorted(prompts[start : start + WINDOW], key=lambda p: len(p[1].ids))
    with path.open("a", encoding="utf-8") as file, tqdm(total=len(prompts), desc="answers", unit="text") as bar:
        tokens = 0
        for index, answer in _answers(backbone, prompts, temperature):
            row, prompt = prompts[index]
            example = Example(row["id"], row["task"], is_held_back(row), prompt.prefix, prompt.ids, answer)
            file.write(json.dumps(asdict(example)) + "\n")
            file.flush()
            tokens += len(answer)
            bar.update()
            bar.set_postfix(tokens=tokens, refresh=False)


def _answers(backbone: Backbone, prompts: list, temperature: float) -> Iterator[tuple[int, list[int]]]:
    """(index, answer) as they end; the batch is kept full, each task's prompt prefix is computed once."""
    generator = BatchGenerator(
        backbone.model,
        stop_tokens=[[token] for token in sorted(backbone.eos)],
        completion_batch_size=BATCH,
        prefill_batch_size=JOIN,
    )
    prefixes: dict[tuple[int, ...], list[tuple[mx.array, mx.array]]] = {}
    waiting = iter(enumerate(prompts))
    index_of: dict[int, int] = {}
    answers: dict[int, list[int]] = {}

    def insert(count: int) -> None:
        for index, (row, prompt) in islice(waiting, count):
            head = tuple(prompt.ids[: prompt.prefix])
            if head not in prefixes:
                prefixes[head] = _prefix_states(backbone, head)
            (uid,) = generator.insert(
                [prompt.ids[prompt.prefix :]],
                max_tokens=[wording(row).default_max_tokens(prompt.text_tokens)],
                caches=[_caches(prefixes[head])],
                samplers=[_sampler(row["id"], temperature)] if temperature else None,
            )
            index_of[uid], answers[uid] = index, []

    insert(BATCH)
    while responses := generator.next_generated():
        for response in responses:
            answers[response.uid].append(response.token)
            if response.finish_reason is not None:
                yield index_of.pop(response.uid), answers.pop(response.uid)
        if len(answers) <= BATCH - JOIN:
            insert(BATCH - len(answers))
    generator.close()


def _sampler(seed: str, temperature: float) -> Callable[[mx.array], mx.array]:
    """Log-probabilities (rows, vocab) → ids (rows,), by random numbers that depend on ``seed`` only."""
    key = mx.random.key(int(spread(seed) * 2**32))

    def sample(logprobs: mx.array) -> mx.array:
        nonlocal key
        key, now = mx.random.split(key)
        return mx.random.categorical(logprobs / temperature, key=now)

    return sample


def _prefix_states(backbone: Backbone, ids: tuple[int, ...]) -> list[tuple[mx.array, mx.array]]:
    cache = make_prompt_cache(backbone.model)
    backbone.model.model(mx.array([ids]), cache=cache)
    states = [layer.state for layer in cache]
    mx.eval(states)
    return states


def _caches(states: list[tuple[mx.array, mx.array]]) -> list[KVCache]:
    caches = []
    for state in states:
        cache = KVCache()
        cache.state = state
        caches.append(cache)
    return caches


def _mend(path: Path) -> None:
    """Cut off a last line that a kill left half written."""
    if path.exists() and (data := path.read_bytes()) and not data.endswith(b"\n"):
        path.write_bytes(data[: data.rfind(b"\n") + 1])


def read_examples(path: Path) -> Iterator[Example]:
    """The examples of a file that ``generate`` wrote."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield Example(**json.loads(line))

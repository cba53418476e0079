"""Decode files of texts with a drafter and with none: acceptance, and whether the ids are the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mtp_mlx.decode import plain
from mtp_mlx.events import Round
from mtp_mlx.jsonl import read_jsonl
from mtp_mlx.metrics import Stats
from mtp_mlx.pipeline import Pipeline
from mtp_mlx.prompt import TextError
from mtp_mlx.request import Request


@dataclass
class Evaluation:
    """Sums over the texts of one or more files.

    Attributes:
        request: what is asked for each text, but for the text.
        prompts: for each text, its accepted tokens and its rounds.
        identical: texts whose ids equal those of plain decode at the same width.
        mismatches: for each other one its line, the first position that differs, and plain decode's margin there.
        skipped: for each line that could not be decoded, why.
    """

    request: Request
    prompts: list[tuple[int, int]] = field(default_factory=list)
    identical: int = 0
    stats: Stats = field(default_factory=Stats)
    mismatches: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)

    @property
    def exact(self) -> bool:
        """Every text that could be decoded came out as plain decode writes it, and there was one."""
        return 0 < self.identical == len(self.prompts)

    def merge(self, other: Evaluation) -> None:
        self.prompts += other.prompts
        self.identical += other.identical
        self.stats.merge(other.stats)
        self.mismatches += other.mismatches
        self.skipped += other.skipped

    def to_json(self) -> dict[str, Any]:
        stats = self.stats.to_json()
        names = ("tokens", "first", "rounds", "drafted", "accepted")
        names += ("additional_per_pass", "acceptance_rate", "per_position")
        return {
            "task": self.request.task,
            "drafter": self.request.drafter,
            "draft_length": "auto" if self.request.draft_length == "auto" else self.request.drafts,
            "width": self.request.rows,
            "prompts": len(self.prompts),
            **{name: stats[name] for name in names},
            "interval": interval(self.prompts),
            "identical": self.identical,
            "mismatches": self.mismatches,
            "skipped": self.skipped,
        }


def interval(prompts: list[tuple[int, int]], *, samples: int = 2000) -> list[float]:
    """The 95 % confidence interval of additional tokens per pass: percentile bootstrap over prompts (Efron, 1979).

    Rounds of one text are alike, so whole texts are drawn, not rounds; texts without a round say nothing. No more than
    one text: no interval.
    """
    prompts = [prompt for prompt in prompts if prompt[1]]
    if len(prompts) < 2:
        return []
    table = np.array(prompts, float)  # (prompts, 2): accepted, rounds
    drawn = np.random.default_rng(0).integers(len(table), size=(samples, len(table)))
    accepted, rounds = table[drawn].sum(axis=1).T  # (samples,) each
    return np.percentile(accepted / rounds, [2.5, 97.5]).tolist()


def read_texts(path: Path, *, limit: int | None = None) -> list[tuple[int, str]]:
    """(line number, text) of a JSONL file of objects with ``text``.

    Raises:
        JsonlError: the file cannot be read, or a line is not a JSON object.
        TextError: a line has no ``text``, or there is none at all.
    """
    texts = []
    for number, row in read_jsonl(path):
        if not isinstance(row.get("text"), str):
            raise TextError(f"{path}, line {number} has no `text` that is a string: mend or remove it")
        texts.append((number, row["text"]))
        if len(texts) == limit:
            break
    if not texts:
        raise TextError(f"{path} holds no text")
    return texts


def evaluate(pipeline: Pipeline, texts: list[tuple[int, str]], result: Evaluation) -> Iterator[Evaluation]:
    """Add each text to ``result``, and yield it as it stands."""
    for line, text in texts:
        request = replace(result.request, text=text)
        try:
            run = pipeline.start(request)
        except TextError as error:
            result.skipped.append({"line": line, "why": str(error)})
            continue
        for _ in run:
            pass
        prompt, options = pipeline.prompt(request), {"max_tokens": run.trace.max_tokens, "width": run.trace.width}
        events = plain(pipeline.backbone, prompt.ids, prefix=pipeline.prefix(prompt), **options)
        rounds = [event for event in events if isinstance(event, Round)]
        ids = [id for round in rounds for id in round.committed]
        result.prompts.append((run.trace.stats.accepted, run.trace.stats.rounds))
        result.stats.merge(run.trace.stats)
        if ids == run.trace.token_ids:
            result.identical += 1
        else:
            pairs = enumerate(zip(ids, run.trace.token_ids, strict=False))
            at = next((i for i, (a, b) in pairs if a != b), min(len(ids), len(run.trace.token_ids)))
            margin = rounds[min(at, len(rounds) - 1)].margin
            result.mismatches.append({"line": line, "position": at, "margin": margin})
        yield result

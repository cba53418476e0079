"""Fold rounds into acceptance, length and speed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from mtp_mlx.events import Round


@dataclass
class Stats:
    """Sums over rounds, and the field's ratios of them.

    A draft token counts as drafted even when it was not read because one before it was rejected. ``tokens`` are all
    that were committed; ``first`` of them, one a text, came with the prompt, in no round.
    """

    rounds: int = 0
    tokens: int = 0
    first: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    prefill_seconds: float = 0.0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)

    def add(self, round: Round) -> None:
        self.tokens += len(round.committed)
        if round.kind == "first":
            self.first += 1
            return
        self.rounds += 1
        self.drafted += len(round.drafted)
        self.accepted += round.accepted
        self.draft_seconds += round.draft_seconds
        self.verify_seconds += round.verify_seconds
        self._count(self.drafted_at, len(round.drafted))
        self._count(self.accepted_at, round.accepted)

    def merge(self, other: Stats) -> None:
        for name, value in vars(other).items():
            mine = getattr(self, name)
            if isinstance(value, list):
                mine.extend([0] * (len(value) - len(mine)))
                for i, count in enumerate(value):
                    mine[i] += count
            else:
                setattr(self, name, mine + value)

    @staticmethod
    def _count(counts: list[int], length: int) -> None:
        counts.extend([0] * (length - len(counts)))
        for i in range(length):
            counts[i] += 1

    @property
    def seconds(self) -> float:
        """Seconds of drafting and verifying, without the prefill."""
        return self.draft_seconds + self.verify_seconds

    @property
    def additional_per_pass(self) -> float:
        """Accepted draft tokens per verify pass; 0 where nothing is drafted."""
        return self.accepted / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted of drafted, 0 to 1."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def per_position(self) -> list[float]:
        """For each draft position, the share of the tokens drafted there that were accepted, 0 to 1."""
        hits = self.accepted_at + [0] * (len(self.drafted_at) - len(self.accepted_at))
        return [hit / tries for hit, tries in zip(hits, self.drafted_at, strict=True)]

    @property
    def passes_saved(self) -> int:
        """Backbone passes that plain decode would have needed on top."""
        return self.tokens - self.first - self.rounds

    @property
    def tokens_per_second(self) -> float:
        """Tokens committed in rounds, per second of drafting and verifying."""
        return (self.tokens - self.first) / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        ratios = ("seconds", "additional_per_pass", "acceptance_rate", "per_position", "passes_saved")
        return asdict(self) | {name: getattr(self, name) for name in (*ratios, "tokens_per_second")}


def fold(rounds: Iterable[Round], *, prefill_seconds: float = 0.0) -> Stats:
    """The statistics of some rounds."""
    stats = Stats(prefill_seconds=prefill_seconds)
    for round in rounds:
        stats.add(round)
    return stats

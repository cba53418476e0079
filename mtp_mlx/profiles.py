"""Phone memory budgets: what a model may take, whether a run fits before it loads, whether it still fits after."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GB = 2**30  # a phone's "8 GB" of RAM is 8 × 2**30 bytes
SHARE = 5  # one part in so many of RAM, where no figure was published: our assumption, see ``Profile.budget_bytes``


class ProfileError(ValueError):
    """An unknown profile, or a run that does not fit one. The message is one line."""


@dataclass(frozen=True)
class Source:
    """Where a figure was published: which figure, the page's title, its address."""

    figure: str
    title: str
    url: str


@dataclass(frozen=True)
class Profile:
    """A device to mirror.

    Attributes:
        ram_bytes: all of its RAM; None where nothing is limited.
        ai_reserved_bytes: RAM the maker keeps for AI models; None where no figure was published.
    """

    key: str
    name: str
    ram_bytes: int | None = None
    ai_reserved_bytes: int | None = None
    sources: tuple[Source, ...] = ()

    @property
    def budget_bytes(self) -> int | None:
        """The most a model may take, in bytes; None for no limit.

        The AI-reserved memory where it was published. Elsewhere a fifth of RAM, which is **our assumption**, not the
        maker's figure: it lies between the two published shares (Pixel 9 Pro 16.5 %, Pixel 10 25 %), so that within a
        series more RAM never means a smaller budget.
        """
        if self.ai_reserved_bytes is not None or self.ram_bytes is None:
            return self.ai_reserved_bytes
        return self.ram_bytes // SHARE

    def fits(self, size: int) -> bool:
        """Whether ``size`` bytes are within the budget; exactly the budget is."""
        return self.budget_bytes is None or size <= self.budget_bytes


@dataclass
class Ledger:
    """What a run takes, by name, in bytes: weights, KV cache, draft vocabulary matrix, working memory, ..."""

    entries: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Bytes in all."""
        return sum(self.entries.values())


def profiles() -> dict[str, Profile]:
    """All profiles by key, in the order of ``profiles.toml``: no limit first, then phones from old to new."""
    data = tomllib.loads(Path(__file__).with_name("profiles.toml").read_text(encoding="utf-8"))
    return {
        key: Profile(
            key=key,
            name=entry["name"],
            ram_bytes=_bytes(entry.get("ram_gb")),
            ai_reserved_bytes=_bytes(entry.get("ai_reserved_gb")),
            sources=tuple(Source(**source) for source in entry.get("sources", ())),
        )
        for key, entry in data.items()
    }


def get(key: str) -> Profile:
    """The profile of that key; raises ``ProfileError`` naming the known ones if there is none."""
    known = profiles()
    if key not in known:
        raise ProfileError(f"no profile {key!r}; known: {', '.join(known)}")
    return known[key]


def admit(profile: Profile, ledger: Ledger, *, alternatives: Mapping[str, int] | None = None) -> None:
    """Let a run load, or raise ``ProfileError`` saying what does not fit, by how much, and what would.

    Args:
        alternatives: other ways to run, best first: description → bytes in all. The first that fits is named; without
            one, the phone with the smallest budget that has room.
    """
    budget, total = profile.budget_bytes, ledger.total
    if budget is None or profile.fits(total):
        return
    fitting = [f"{what} ({human(size)})" for what, size in (alternatives or {}).items() if profile.fits(size)]
    phones = [(p.budget_bytes, p.name) for p in profiles().values() if p.budget_bytes and p.fits(total)]
    remedy = fitting[0] if fitting else min(phones)[1] if phones else "no phone, only no limit"
    parts = ", ".join(f"{name} {human(size)}" for name, size in ledger.entries.items())
    raise ProfileError(
        f"{human(total)} ({parts}) does not fit {profile.name}: {human(total - budget)} over its budget of "
        f"{human(budget)}; would fit: {remedy}"
    )


def watch(profile: Profile, active_bytes: int) -> str | None:
    """A one-line warning if measured memory has outgrown the budget. MLX's own limit is soft on the CPU."""
    budget = profile.budget_bytes
    if budget is None or profile.fits(active_bytes):
        return None
    return f"{human(active_bytes)} in use, {human(active_bytes - budget)} over the {human(budget)} of {profile.name}"


def human(size: int) -> str:
    """Bytes for people, in powers of 1024: ``900 B``, ``12.0 KiB``, ``513.1 MiB``, ``2.64 GiB``."""
    for unit, name, digits in ((GB, "GiB", 2), (2**20, "MiB", 1), (2**10, "KiB", 1)):
        if size >= unit:
            return f"{size / unit:,.{digits}f} {name}"
    return f"{size} B"


def _bytes(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else round(gigabytes * GB)

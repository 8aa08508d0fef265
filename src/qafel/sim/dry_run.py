"""A simulation without training: the concurrency and staleness that some settings lead to."""

import msgspec
import numpy as np

from qafel.errors import ConfigError
from qafel.sim.settings import Settings
from qafel.sim.timeline import Timeline, kernels


class DryRun(msgspec.Struct, frozen=True):
    """The totals of a timeline."""

    events: int
    uploads: int
    time: float
    steps: int
    concurrency: float
    staleness: list[int]
    """How many accepted updates had staleness 0, 1, 2, …"""
    lost: int
    rejected: int
    turned_away: int


def run_timeline(settings: Settings, clients: int) -> DryRun:
    """Run the clock alone, in whole blocks, until ``settings.uploads`` updates have reported."""
    if settings.live:
        raise ConfigError(
            "with bandwidths the clock depends on the training; leave them out, or use qafel run"
        )
    timeline = Timeline(settings, clients=clients)
    limit = float("inf") if settings.max_staleness is None else settings.max_staleness
    events = reports = lost = rejected = away = 0
    histogram = np.zeros(0, np.int64)
    ended = False
    while reports < settings.uploads and not ended:
        count, ended = timeline.block()
        kinds, _, whose = timeline.columns
        staleness = whose[:count, 3][kinds[:count] == kernels.REPORT]
        events, reports = events + count, reports + len(staleness)
        lost += int((kinds[:count] == kernels.LOST).sum())
        rejected += int((staleness > limit).sum())
        away += int((kinds[:count] == kernels.AWAY).sum())
        counts = np.bincount(staleness[staleness <= limit], minlength=len(histogram))
        counts[: len(histogram)] += histogram
        histogram = counts
    return DryRun(
        events=events,
        uploads=reports,
        time=timeline.now,
        steps=timeline.version,
        concurrency=timeline.concurrency,
        staleness=histogram.tolist(),
        lost=lost,
        rejected=rejected,
        turned_away=away,
    )

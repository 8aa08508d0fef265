"""Evaluations of clients, combined so that a few wrong ones do not decide when the training ends."""

import statistics
from collections import Counter
from collections.abc import Collection

import numpy as np

from qafel.buffer import MAX_RATIO
from qafel.federation.entries import Report

MAX_REPORTS = 1000
"""The newest reports of so many clients are combined."""


def remember(reports: dict[int, Report], client: int, report: Report | None) -> None:
    """Keep the newest report of a client; ignore a report with a number that is not finite."""
    if report is None or not all(np.isfinite(value) for value in report.sums.values()):
        return
    reports.pop(client, None)
    reports[client] = report
    if len(reports) > MAX_REPORTS:
        del reports[next(iter(reports))]


def combined(reports: Collection[Report], max_samples: int) -> dict[str, float]:
    """The mean of every metric that most reports have; a report counts for at most ``max_samples`` samples.

    A value that is far from the others is cut to 30 times their median, and an accuracy to [0, 1].
    """
    names = Counter(name for report in reports for name in report.sums)
    means = {}
    for name, count in names.items():
        if 2 * count <= len(reports):
            continue
        having = [report for report in reports if name in report.sums]
        values = np.array([report.sums[name] / report.samples for report in having])
        sizes = np.abs(values[values != 0])
        limit = MAX_RATIO * statistics.median_low(sizes.tolist()) if sizes.size else 0.0
        values = values.clip(0.0, 1.0) if name == "accuracy" else values.clip(-limit, limit)
        weights = [min(report.samples, max_samples) for report in having]
        means[name] = float(np.average(values, weights=weights))
    return means

"""The paper's claims, checked on the runs: one counts as held only if its whole 95 % interval does.

Where a run never reached the target, or there is only one seed, there is no interval: that is undecided.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from qafel.reproduce.rows import Paired, Row, by_seed
from qafel.reproduce.study import Claim
from qafel.runs.comparison import spell
from qafel.runs.intervals import Floats, Interval, mean_interval

BITS = (8, 4, 2)
MORE_UPLOADS, FEWER_MB = 1.5, 5.2
"""The paper's claim for four bits each way: at most 1.5 times FedBuff's uploads, 5.2 times fewer MB."""
Held = bool | None
"""As in ``Claim``: None where the interval does not decide."""


def at_most(interval: Interval, limit: float) -> Held:
    """Whether a value is less than ``limit``, by its interval; a tie is undecided."""
    _, low, high = interval
    return True if high < limit else False if low > limit else None


def at_least(interval: Interval, limit: float) -> Held:
    """Whether a value is more than ``limit``."""
    value, low, high = interval
    return at_most((-value, -high, -low), -limit)


def every(parts: Iterable[Held]) -> Held:
    """Whether all parts of a claim held."""
    known = list(parts)
    return False if False in known else None if None in known else True


def thousands(values: Floats) -> str:
    """The mean of uploads over the seeds, in thousands."""
    return "–" if np.isnan(values.mean()) else f"{values.mean() / 1000:.2f} k"


def table1(rows: Mapping[str, Row], pairs: Mapping[str, Paired], cells: str, kind: str) -> list[Claim]:
    """The claims about the quantizers of both sides: of the cells that begin with ``cells``."""
    grid = {(c, s): f"{cells}-{c}-{s}" for c in BITS for s in BITS}
    uploads = {bits: by_seed(rows[name].uploads) for bits, name in grid.items()}
    clients = {c: np.mean([uploads[c, s] for s in BITS], 0) for c in BITS}
    servers = {s: np.mean([uploads[c, s] for c in BITS], 0) for s in BITS}
    wide = [np.ptp([side[bits] for bits in BITS], 0) for side in (clients, servers)]
    means = [
        " / ".join(f"{bits}-bit {thousands(side[bits])}" for bits in BITS) for side in (clients, servers)
    ]
    costlier = mean_interval(clients[2] - np.maximum(clients[8], clients[4]))
    more = mean_interval(wide[0] - wide[1])
    down = {bits: by_seed(rows[name].mb_down_by_seed) for bits, name in grid.items()}
    return [
        *_four_bits(pairs[f"{cells}-4-4"], kind),
        Claim(
            f"{kind}: a 2-bit client costs most uploads",
            at_least(costlier, 0),
            f"mean over servers, by client: {means[0]}; 2 bits cost {_more(costlier)} more than the next",
        ),
        Claim(
            f"{kind}: for a given client quantizer, a coarser server quantizer means fewer bytes downloaded",
            every(
                at_least(mean_interval(down[c, fine] - down[c, coarse]), 0)
                for c in BITS
                for fine, coarse in ((8, 4), (4, 2))
            ),
            "; ".join(
                f"{c}-bit client: {' > '.join(f'{down[c, s].mean():.2f}' for s in BITS)} MB" for c in BITS
            ),
        ),
        Claim(
            f"{kind}: the client's quantizer moves the uploads more than the server's",
            at_least(more, 0),
            f"the range over clients ({means[0]}) is larger by {_more(more)} than over servers ({means[1]})",
        ),
        Claim(
            f"{kind}: in all cases at least 3 times less is uploaded and 2 times less broadcast",
            every(
                at_least(fewer, limit)
                for name in grid.values()
                for fewer, limit in ((pairs[name].fewer_up, 3), (pairs[name].fewer_down, 2))
            ),
            ", ".join(
                f"{c}/{s}: {spell(pairs[name].fewer_up)} {spell(pairs[name].fewer_down)}"
                for (c, s), name in grid.items()
            ),
        ),
    ]


def _four_bits(four: Paired, kind: str) -> list[Claim]:
    """What the paper claims of four bits each way."""
    return [
        Claim(
            f"{kind}: four bits each way need at most 1.5 times FedBuff's uploads (paper: 1 to 1.5)",
            at_most(four.ratio, MORE_UPLOADS),
            f"{spell(four.ratio)} over {four.seeds} paired seeds (paper: 1.07)",
        ),
        Claim(
            f"{kind}: four bits each way send at least 5.2 times fewer MB (paper: 5.2 to 8)",
            every(at_least(fewer, FEWER_MB) for fewer in (four.fewer_up, four.fewer_down)),
            f"up {spell(four.fewer_up)}, down {spell(four.fewer_down)}",
        ),
    ]


def _more(difference: Interval) -> str:
    """A difference of uploads, with its interval, in thousands."""
    return spell(difference, " k", scale=1e-3)


def table2(rows: Sequence[Row], pairs: Mapping[str, Paired]) -> list[Claim]:
    """The claims about a server that sends the top 10 %, without FedBuff's row."""
    order = [by_seed(row.uploads) for row in rows]
    steps = [mean_interval(after - before) for before, after in itertools.pairwise(order)]
    return [
        Claim(
            "with a top-10 % server, fewer client bits cost more uploads",
            every(at_least(step, 0) for step in steps),
            f"{' / '.join(f'{row.label}: {thousands(k)}' for row, k in zip(rows, order, strict=True))}; "
            f"{', '.join(_more(step) for step in steps)}",
        ),
        Claim(
            "the biased top-10 % server sends fewer MB than FedBuff each way",
            every(
                at_least(fewer, 1) for pair in pairs.values() for fewer in (pair.fewer_up, pair.fewer_down)
            ),
            ", ".join(f"{n}: up {spell(p.fewer_up)}, down {spell(p.fewer_down)}" for n, p in pairs.items()),
        ),
    ]


def concurrency(pairs: Mapping[str, Paired]) -> list[Claim]:
    """The claims about 100, 500 and 1,000 clients in flight."""
    return [
        Claim(
            "QAFeL needs at most 1.5 times FedBuff's uploads at every concurrency (paper: 1 to 1.5)",
            every(at_most(pair.ratio, MORE_UPLOADS) for pair in pairs.values()),
            ", ".join(f"{n}: {spell(pair.ratio)}" for n, pair in pairs.items()),
        ),
        Claim(
            "QAFeL sends at least 5.2 times fewer MB at every concurrency (paper: 5.2 to 8)",
            every(
                at_least(fewer, FEWER_MB)
                for pair in pairs.values()
                for fewer in (pair.fewer_up, pair.fewer_down)
            ),
            ", ".join(f"{n}: up {spell(p.fewer_up)}, down {spell(p.fewer_down)}" for n, p in pairs.items()),
        ),
    ]

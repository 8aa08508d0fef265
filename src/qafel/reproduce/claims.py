"""The paper's claims, checked on the rows.

A run that never reached the target counts with its limit of uploads, a lower bound on what it needs.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

from qafel.reproduce.rows import Row
from qafel.reproduce.study import Claim
from qafel.runs.comparison import spell
from qafel.runs.curves import Against, Interval

BITS = (8, 4, 2)


def table1(rows: Mapping[str, Row], four: Against, max_uploads: int, kind: str) -> list[Claim]:
    """The claims about the quantizers of both sides."""
    grid = {(c, s): rows[f"{kind}-{c}-{s}"] for c in BITS for s in BITS}
    uploads = {bits: row.limited(max_uploads) for bits, row in grid.items()}
    fedbuff = rows["fedbuff"]
    clients = {c: statistics.fmean(uploads[c, s] for s in BITS) for c in BITS}
    servers = {s: statistics.fmean(uploads[c, s] for c in BITS) for s in BITS}
    spread = [max(side.values()) - min(side.values()) for side in (clients, servers)]
    means = [" / ".join(f"{bits}-bit {side[bits]:.2f} k" for bits in BITS) for side in (clients, servers)]
    down = {bits: row.mb_down[0] if row.reached else math.nan for bits, row in grid.items()}
    coarser = {c: down[c, 8] > down[c, 4] > down[c, 2] for c in BITS}
    saved = {
        bits: (fedbuff.mb_up[0] / row.mb_up[0], fedbuff.mb_down[0] / row.mb_down[0])
        for bits, row in grid.items()
        if row.reached
    }
    return [
        Claim(
            f"{kind}: 4/4 needs at most 1.2 times FedBuff's uploads",
            four.ratio[0] <= 1.2,
            f"{spell_times(four.ratio)} over {len(four.seeds)} paired seeds, mean curves (paper: 1.07)",
        ),
        Claim(
            f"{kind}: 4/4 sends at least 6 times fewer MB in each direction",
            min(four.fewer_up[0], four.fewer_down[0]) >= 6,
            f"up {spell_times(four.fewer_up)}, down {spell_times(four.fewer_down)} (paper: 5.2 to 8)",
        ),
        Claim(
            f"{kind}: a 2-bit client costs most uploads",
            clients[2] > max(clients[8], clients[4]),
            f"mean over servers, by client: {means[0]}",
        ),
        Claim(
            f"{kind}: for a given client quantizer, a coarser server quantizer means fewer bytes downloaded",
            all(coarser.values()),
            "; ".join(
                f"{c}-bit client: {' > '.join(f'{down[c, s]:.2f}' for s in BITS)} MB"
                f"{'' if coarser[c] else ' does not hold'}"
                for c in BITS
            ),
        ),
        Claim(
            f"{kind}: the client's quantizer moves the uploads more than the server's",
            spread[0] > spread[1],
            f"spread {spread[0]:.2f} k over clients ({means[0]}) against {spread[1]:.2f} k over servers "
            f"({means[1]})",
        ),
        Claim(
            f"{kind}: in all cases at least 3 times less is uploaded and 2 times less broadcast",
            len(saved) == len(grid) and all(up >= 3 and dn >= 2 for up, dn in saved.values()),
            ", ".join(f"{c}/{s}: {up:.1f}× {dn:.1f}×" for (c, s), (up, dn) in saved.items()),
        ),
    ]


def table2(rows: Sequence[Row], pairs: Mapping[str, Against], max_uploads: int) -> list[Claim]:
    """The claims about a server that sends the top 10 %, without FedBuff's row."""
    order = [row.limited(max_uploads) for row in rows]
    return [
        Claim(
            "with a top-10 % server, fewer client bits cost more uploads",
            order[0] <= order[1] <= order[2],
            " / ".join(f"{row.label}: {k:.2f} k" for row, k in zip(rows, order, strict=True)),
        ),
        Claim(
            "the biased top-10 % server sends fewer MB than FedBuff each way",
            all(min(pair.fewer_up[0], pair.fewer_down[0]) > 1 for pair in pairs.values()),
            ", ".join(f"{n}: up {p.fewer_up[0]:.1f}×, down {p.fewer_down[0]:.1f}×" for n, p in pairs.items()),
        ),
    ]


def concurrency(pairs: Mapping[str, Against]) -> list[Claim]:
    """The claims about 100, 500 and 1,000 clients in flight."""
    return [
        Claim(
            "QAFeL needs at most 1.5 times FedBuff's uploads at every concurrency (paper: 1 to 1.5)",
            all(pair.ratio[0] <= 1.5 for pair in pairs.values()),
            ", ".join(f"{n}: {spell_times(pair.ratio)}" for n, pair in pairs.items()),
        ),
        Claim(
            "QAFeL sends at least 5.2 times fewer MB at every concurrency (paper: 5.2 to 8)",
            all(min(pair.fewer_up[0], pair.fewer_down[0]) >= 5.2 for pair in pairs.values()),
            ", ".join(f"{n}: up {p.fewer_up[0]:.2f}×, down {p.fewer_down[0]:.2f}×" for n, p in pairs.items()),
        ),
    ]


def spell_times(values: Interval) -> str:
    """A ratio and its interval as text."""
    return spell(values, "×")

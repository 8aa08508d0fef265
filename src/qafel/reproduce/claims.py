"""The paper's claims, checked on the rows.

A run that never reached the target counts with its limit of uploads, a lower bound on what it needs.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

import msgspec

from qafel.reproduce.rows import Paired, Row

BITS = (8, 4, 2)


class Claim(msgspec.Struct, frozen=True):
    """A claim, whether it held, and the numbers."""

    text: str
    held: bool
    numbers: str


def table1(rows: Mapping[str, Row], four: Paired, max_uploads: int, kind: str) -> list[Claim]:
    """The claims about the quantizers of both sides."""
    grid = {(c, s): rows[f"{kind}-{c}-{s}"] for c in BITS for s in BITS}
    uploads = {bits: thousands(row, max_uploads) for bits, row in grid.items()}
    fedbuff = rows["fedbuff"]
    clients = {c: statistics.fmean(uploads[c, s] for s in BITS) for c in BITS}
    servers = {s: statistics.fmean(uploads[c, s] for c in BITS) for s in BITS}
    spread = [max(side.values()) - min(side.values()) for side in (clients, servers)]
    down = {bits: row.mb_down[0] if row.reached else math.nan for bits, row in grid.items()}
    coarser = {c: down[c, 8] > down[c, 4] > down[c, 2] for c in BITS}
    saved = {
        bits: (fedbuff.mb_up[0] / row.mb_up[0], fedbuff.mb_down[0] / row.mb_down[0])
        for bits, row in grid.items()
        if row.reached
    }
    names = " / ".join(f"{c}-bit {clients[c]:.2f} k" for c in BITS)
    server_names = " / ".join(f"{s}-bit {servers[s]:.2f} k" for s in BITS)
    return [
        Claim(
            "4/4 needs at most 1.2 times FedBuff's uploads",
            four.uploads[0] <= 1.2,
            f"{spell(four.uploads)} over {four.seeds} paired seeds (paper: 1.07)",
        ),
        Claim(
            "4/4 sends at least 6 times fewer MB in each direction",
            min(four.mb_up[0], four.mb_down[0]) >= 6,
            f"up {spell(four.mb_up)}, down {spell(four.mb_down)} (paper: 5.2 to 8)",
        ),
        Claim(
            "a 2-bit client costs most uploads",
            clients[2] > max(clients[8], clients[4]),
            f"mean over servers, by client: {names}",
        ),
        Claim(
            "for a given client quantizer, a coarser server quantizer means fewer bytes downloaded",
            all(coarser.values()),
            "; ".join(
                f"{c}-bit client: {' > '.join(f'{down[c, s]:.2f}' for s in BITS)} MB"
                f"{'' if coarser[c] else ' does not hold'}"
                for c in BITS
            ),
        ),
        Claim(
            "the client's quantizer moves the uploads more than the server's",
            spread[0] > spread[1],
            f"spread {spread[0]:.2f} k over clients ({names}) against {spread[1]:.2f} k over servers "
            f"({server_names})",
        ),
        Claim(
            "in all cases at least 3 times less is uploaded and 2 times less broadcast",
            len(saved) == len(grid) and all(up >= 3 and dn >= 2 for up, dn in saved.values()),
            ", ".join(f"{c}/{s}: {up:.1f}× {dn:.1f}×" for (c, s), (up, dn) in saved.items()),
        ),
    ]


def table2(rows: Sequence[Row], pairs: Mapping[str, Paired], max_uploads: int) -> list[Claim]:
    """The claims about a server that sends the top 10 %, without FedBuff's row."""
    order = [thousands(row, max_uploads) for row in rows]
    return [
        Claim(
            "with a top-10 % server, fewer client bits cost more uploads",
            order[0] <= order[1] <= order[2],
            " / ".join(f"{row.label}: {k:.2f} k" for row, k in zip(rows, order, strict=True)),
        ),
        Claim(
            "the biased top-10 % server sends fewer MB than FedBuff each way",
            all(min(pair.mb_up[0], pair.mb_down[0]) > 1 for pair in pairs.values() if pair.seeds),
            ", ".join(f"{n}: up {p.mb_up[0]:.1f}×, down {p.mb_down[0]:.1f}×" for n, p in pairs.items()),
        ),
    ]


def concurrency(pairs: Mapping[int, Paired]) -> list[Claim]:
    """The claims about 100, 500 and 1,000 clients in flight."""
    uploads = {n: pair.uploads[0] for n, pair in pairs.items()}
    fewer = {n: (pair.mb_up[0], pair.mb_down[0]) for n, pair in pairs.items()}
    return [
        Claim(
            "QAFeL needs at most 1.5 times FedBuff's uploads at every concurrency (paper: 1 to 1.5)",
            all(ratio <= 1.5 for ratio in uploads.values()),
            ", ".join(f"{n}: {spell(pair.uploads)}" for n, pair in pairs.items()),
        ),
        Claim(
            "QAFeL sends at least 5.2 times fewer MB at every concurrency (paper: 5.2 to 8)",
            all(min(both) >= 5.2 for both in fewer.values()),
            ", ".join(f"{n}: up {up:.2f}×, down {down:.2f}×" for n, (up, down) in fewer.items()),
        ),
    ]


def thousands(row: Row, max_uploads: int) -> float:
    """Uploads to the target in thousands; a run that never reached it counts with ``max_uploads``."""
    return statistics.fmean((max_uploads if u is None else u) / 1000 for u in row.uploads)


def spell(values: Sequence[float]) -> str:
    """Mean and interval as text."""
    mean, low, high = values
    return f"{mean:.2f}×" if math.isnan(low) else f"{mean:.2f}× ({low:.2f} to {high:.2f})"

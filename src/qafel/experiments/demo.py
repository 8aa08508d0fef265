"""The demo: QAFeL beside FedBuff on drawn faces, with the paper's CNN and its clock.

Both live through the same timeline: 7,474 clients, a hundred arrivals per unit of time, a server step for
every ten uploads.
"""

import msgspec

from qafel.sim import Settings

UPLOADS = 5000


def runs(seed: int = 0, uploads: int = UPLOADS) -> dict[str, list[Settings]]:
    """The two runs, by name."""
    shared = Settings(uploads=uploads, seed=seed, evaluate_every=min(250, uploads))
    return {name: [msgspec.structs.replace(shared, algorithm=name)] for name in ("qafel", "fedbuff")}

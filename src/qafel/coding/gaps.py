"""Tables of the code for rounded normal numbers, most of them zero, that are independent of each other.

A symbol of the code is a number other than zero with the *gap*, the count of zeros before it; or a run of
``gaps`` zeros. The code is static: a class tells how coarse the rounding was, and with it all probabilities.
Magnitudes from ``tops`` on share a symbol, and an Elias gamma code of the rest follows.

    symbol = (gap · tops + magnitude − 1) · 2 + (1 if negative)         the last symbol is the run

The tables come from additions, multiplications and divisions of float64 numbers in a fixed order, so that
they are the same on every machine.
"""

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

ROUNDING = 1 / 3
"""A number y becomes ⌊|y|/step + ROUNDING⌋, with its sign."""
BLOCK = 1024
"""Coordinates that share a class."""
BITS = 13
"""Probabilities are multiples of 2⁻¹³."""
STEPS = (
    4.5, 4.33, 4.18, 4.03, 3.88, 3.73, 3.57, 3.41, 3.26, 3.1, 2.94, 2.78, 2.62, 2.46, 2.3, 2.15,
    2.0, 1.85, 1.71, 1.57, 1.43, 1.29, 1.16, 1.03, 0.9, 0.78, 0.66, 0.55, 0.45, 0.36, 0.28, 0.22,
)  # fmt: skip
"""The step of every class, in units of the standard deviation."""
CLASSES = len(STEPS)
MAX_GAPS, MAX_TOP, SKIP = 64, 16, 5
"""Zeros of a run; largest magnitude with a symbol of its own; bits of a part that the decoder skips."""
RARE_RUN, RARE_TOP = 0.1, 0.004
"""A run is lengthened until its probability is at most RARE_RUN; ``tops`` is raised until at most RARE_TOP of
the numbers other than zero reach it."""


class Tables(NamedTuple):
    """What encoder and decoder look up, a row for every class."""

    gaps: npt.NDArray[np.uintp]
    tops: npt.NDArray[np.uintp]
    starts: npt.NDArray[np.uint16]
    """The first of the 2¹³ parts that belong to a symbol; 2¹³ after the last symbol."""
    symbols: npt.NDArray[np.uint16]
    """The symbol of the first of every 32 parts. Tables stay small, so that they stay in the cache."""
    zeros: npt.NDArray[np.uint8]
    """The gap of every symbol."""
    values: npt.NDArray[np.int8]
    """The number of every symbol, 0 for the run."""
    classes: npt.NDArray[np.uint8]
    """The class by the number of coordinates other than zero in a block."""


@lru_cache(maxsize=1)
def tables() -> Tables:
    """Return the tables of all classes."""
    rows = [_class(step) for step in STEPS]
    max_shares = max(len(shares) for _, _, shares in rows)
    starts = np.full((CLASSES, max_shares + 1), 1 << BITS, np.uint16)
    symbols = np.empty((CLASSES, 1 << (BITS - SKIP)), np.uint16)
    zeros, values = np.zeros((CLASSES, max_shares), np.uint8), np.zeros((CLASSES, max_shares), np.int8)
    for k, (gaps, top, shares) in enumerate(rows):
        count = len(shares)
        starts[k, :count] = np.cumsum(shares) - shares
        symbols[k] = np.repeat(np.arange(count), shares)[:: 1 << SKIP]
        zeros[k, : count - 1], zeros[k, count - 1] = np.repeat(np.arange(gaps), 2 * top), gaps
        sizes = np.repeat(np.arange(1, top + 1), 2) * np.tile([1, -1], top)
        values[k, : count - 1] = np.tile(sizes, gaps)
    chances = [2 * _tail((1 - ROUNDING) * step) for step in STEPS]
    limits = [a * b for a, b in pairwise(chances)]  # the class changes at the geometric mean of two chances
    nearest = [sum((n / BLOCK) ** 2 > limit for limit in limits) for n in range(BLOCK + 1)]
    gaps_of, tops = np.array([row[:2] for row in rows], np.uintp).T.copy()
    return Tables(gaps_of, tops, starts, symbols, zeros, values, np.array(nearest, np.uint8))


def _class(step: float) -> tuple[int, int, list[int]]:
    """Return the gaps of a run, the largest magnitude with a symbol of its own, the shares of all symbols."""
    tails = [2 * _tail((k - ROUNDING) * step) for k in range(1, MAX_TOP + 2)]
    chance, top, gaps, run = tails[0], 2, 1, 1 - tails[0]
    while top < MAX_TOP and tails[top - 1] > RARE_TOP * chance:
        top += 1
    while gaps < MAX_GAPS and run > RARE_RUN:
        gaps, run = 2 * gaps, run * run
    sizes = [tails[k] - tails[k + 1] for k in range(top - 1)] + [tails[top - 1]]
    probabilities, zeros = [], 1.0
    for _ in range(gaps):
        probabilities += [zeros * size / 2 for size in sizes for _ in range(2)]
        zeros *= 1 - chance
    return gaps, top, _rounded([*probabilities, run])


def _rounded(probabilities: list[float]) -> list[int]:
    """Round probabilities to multiples of 2⁻¹³ that add up to 1, none of them 0.

    What the rare symbols get too much is taken from the others in proportion.
    """
    whole = 1 << BITS
    rare = [probability * whole < 1 for probability in probabilities]
    rest = sum(probability for probability, few in zip(probabilities, rare, strict=True) if not few)
    scale = (whole - sum(rare)) / rest
    shares = [max(int(probability * scale), 1) for probability in probabilities]
    order = sorted(range(len(shares)), key=lambda k: -probabilities[k])
    for k in range(abs(excess := sum(shares) - whole)):
        shares[order[k % len(order)]] -= 1 if excess > 0 else -1
    return shares


def _tail(z: float) -> float:
    """The probability that a normal number is above ``z``: ½ − φ(z)·(z + z³/3 + z⁵/(3·5) + …)."""
    series = term = z
    density = power = 1.0
    for k in range(1, 150):
        term *= z * z / (2 * k + 1)
        series += term
        power *= z * z / 2 / k
        density += power
    return max(0.5 - series / density / 2.5066282746310002, 0.0)

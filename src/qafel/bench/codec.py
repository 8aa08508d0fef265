"""Speed of the codecs, in units of ``np.copyto`` of the same array in the same rounds."""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator

import msgspec
import numpy as np

from qafel import vectors
from qafel.coding.threads import set_threads, thread_count
from qafel.config import CLIENT_QUANTIZER, DEFAULT_QUANTIZER, SERVER_QUANTIZER
from qafel.quantizers import Quantizer, quantizer
from qafel.streams import generator

SIZES = (29_282, 1_000_000, 11_000_000)
SPECS = (
    CLIENT_QUANTIZER,
    SERVER_QUANTIZER,
    DEFAULT_QUANTIZER,
    "qsgd:8,bucket=256,norm=max",
    "qsgd:2,bucket=256,norm=max",
    "qsgd:4",
    "affine:4",
    "topk:0.1",
    "randk:0.1,scaled",
    "contract:qsgd:4",
    "induced:topk:0.1+qsgd:4,bucket=256,norm=max",
    "dither:step=2",
    "eden:2",
    "sign",
    "natural",
    "ternary",
    "identity",
)
IN_THREADS = SPECS[:3]
"""Quantizers that are also timed on all threads where a vector is long enough."""
LONG = 100_000
ROUND_SECONDS = 0.01
"""A round repeats what it times at least this long."""


class Row(msgspec.Struct, frozen=True):
    """One quantizer at one size; ratios are medians over rounds."""

    spec: str
    size: int
    threads: int
    payload_bytes: int
    bits: float
    nmse: float
    copy_us: float
    encode_us: float
    decode_add_us: float
    encode_ratio: float
    decode_add_ratio: float


def bench_codec(
    sizes: Iterable[int] = SIZES, specs: Iterable[str] = SPECS, rounds: int = 15
) -> Iterator[Row]:
    """Time every quantizer at every size, one row at a time."""
    before = thread_count()
    try:
        for size in sizes:
            x = vectors.zeros(size)
            x[:] = generator(0, "bench", size).standard_normal(size, dtype=np.float32) * np.float32(1e-3)
            for q in map(quantizer, specs):
                for threads in sorted({1, before if size > LONG and q.spec in IN_THREADS else 1}):
                    set_threads(threads)
                    yield _row(q, x, rounds, threads)
    finally:
        set_threads(before)


def _row(q: Quantizer, x: vectors.Vector, rounds: int, threads: int) -> Row:
    total = vectors.zeros(x.size)
    payload = q.encode(x, 0)
    error = q.decode(payload, x.size) - x
    q.decode_add(payload, total)
    times = Times(x, rounds, lambda k: q.encode(x, k), lambda _: q.decode_add(payload, total))
    return Row(
        spec=q.spec,
        size=x.size,
        threads=threads,
        payload_bytes=len(payload),
        bits=8 * len(payload) / x.size,
        nmse=float(error @ error) / float(x @ x),
        copy_us=1e6 * times.seconds(0),
        encode_us=1e6 * times.seconds(1),
        decode_add_us=1e6 * times.seconds(2),
        encode_ratio=times.ratio(1),
        decode_add_ratio=times.ratio(2),
    )


class Times:
    """Times of some calls in interleaved rounds; the first one is the yardstick, a copy of ``x``.

    A call is given the number of its round. Its time there is the best of as many calls as fit into a round.
    """

    def __init__(self, x: vectors.Vector, rounds: int, *calls: Callable[[int], object]) -> None:
        twin = vectors.zeros(x.size)
        every = (lambda _: np.copyto(twin, x), *calls)
        self._rounds = [[_seconds(call, k) for call in every] for k in range(rounds)]

    def seconds(self, call: int) -> float:
        """The median time of a call."""
        return statistics.median(times[call] for times in self._rounds)

    def ratio(self, call: int) -> float:
        """The median of a call's times in units of the yardstick."""
        return statistics.median(times[call] / times[0] for times in self._rounds)


def _seconds(call: Callable[[int], object], k: int) -> float:
    best, end = float("inf"), time.perf_counter() + ROUND_SECONDS
    while True:
        start = time.perf_counter()
        call(k)
        now = time.perf_counter()
        best = min(best, now - start)
        if now >= end:
            return best

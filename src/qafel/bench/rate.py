"""Bits against error of the quantizers on vectors of a real run, and the speed of the coder of integers."""

import itertools
import statistics
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from qafel import report, vectors
from qafel.bench.codec import Times
from qafel.coding.integers import decode_integers, encode_integers
from qafel.coding.threads import set_threads, thread_count
from qafel.errors import ConfigError
from qafel.quantizers import quantizer
from qafel.tasks.cnn import LAYOUT
from qafel.vectors import Vector

FAMILIES: dict[str, tuple[str, ...]] = {
    "qsgd, max-norm buckets": tuple(f"qsgd:{b},bucket=256,norm=max" for b in (2, 3, 4, 6, 8)),
    "affine": tuple(f"affine:{b}" for b in (2, 4, 8)),
    "dither": tuple(f"dither:step={s}" for s in (0.1, 0.25, 0.5, 0.75, 1, 2, 4, 6, 8)),
    "rotated": tuple(f"rotated:bits={b}" for b in (0.2, 0.3, 0.45, 0.7, 1, 2, 3)),
    "eden": tuple(f"eden:{b}" for b in (1, 2, 3, 4)),
    "deadzone": tuple(f"deadzone:step={s}" for s in (0.1, 0.25, 0.5, 0.75, 1, 1.4, 2, 2.8)),
    "topk": ("topk:0.01", "topk:0.1", "topk:0.3"),
    "sign": ("sign",),
    "natural": ("natural",),
    "ternary": ("ternary",),
}
SEEDS = 3
TICKS = (0.2, 0.5, 1, 2, 4, 8)
SIZE = 1_000_000


class Point(msgspec.Struct, frozen=True):
    """A quantizer on the vectors of a run: means over them."""

    family: str
    spec: str
    unbiased: bool
    bits: float
    nmse: float
    kilobytes: float
    stages: dict[str, tuple[float, float]]
    """Bits and NMSE by side and stage."""


class Coder(msgspec.Struct, frozen=True):
    """The coder of integers; ratios to np.copyto of as many float32 numbers in the same rounds."""

    step: float
    size: int
    threads: int
    bits: float
    encode_ratio: float
    decode_ratio: float
    encode_millions: float
    """Million numbers per second."""
    decode_millions: float


def load(path: Path) -> dict[str, Vector]:
    """The vectors of a recorded run: ``client-STAGE-UPLOADS`` and ``server-STAGE-UPLOADS``."""
    try:
        with np.load(path, allow_pickle=False) as saved:
            deltas = {name: vectors.as_vector(saved[name], LAYOUT.size) for name in saved.files}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise ConfigError(f"cannot read deltas of the paper's CNN from {path}: {error}") from error
    sides = {name.split("-")[0] for name in deltas}
    wrong = any(name.count("-") != 2 or not x.any() for name, x in deltas.items())
    if wrong or sides != {"client", "server"}:
        raise ConfigError(
            f"{path} must have nonzero arrays, all named client-STAGE-UPLOADS or server-STAGE-UPLOADS"
        )
    return deltas


def points(deltas: Mapping[str, Vector]) -> Iterator[Point]:
    """Every quantizer on what its side sends: unbiased ones on clients' deltas, biased on the server's."""
    for family, specs in FAMILIES.items():
        for spec in specs:
            q = quantizer(spec, LAYOUT)
            side = "client" if q.unbiased else "server"
            measured: dict[str, list[tuple[float, float]]] = {}
            for name, x in deltas.items():
                who, stage, _ = name.split("-")
                if who != side:
                    continue
                power = float(np.square(x, dtype=np.float64).sum())
                for seed in range(SEEDS):
                    payload = q.encode(x, seed)
                    error = np.square((q.decode(payload, x.size) - x).astype(np.float64)).sum()
                    pair = (8 * len(payload) / x.size, float(error) / power)
                    measured.setdefault(f"{who}, {stage}", []).append(pair)
            stages = {name: _mean(pairs) for name, pairs in measured.items()}
            bits, nmse = _mean(list(stages.values()))
            yield Point(family, q.spec, q.unbiased, bits, nmse, bits * LAYOUT.size / 8000, stages)


def _mean(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return statistics.fmean(p[0] for p in pairs), statistics.fmean(p[1] for p in pairs)


def coders(deltas: Mapping[str, Vector], rounds: int = 15) -> Iterator[Coder]:
    """The coder on dithered deltas, one after the other up to ``SIZE`` numbers."""
    clients = [x / np.sqrt(np.mean(x * x)) for name, x in deltas.items() if name.startswith("client")]
    x = vectors.zeros(SIZE)
    x[:] = np.resize(np.concatenate(clients), SIZE)
    dither = np.random.default_rng(0).random(SIZE) - 0.5
    before = thread_count()
    try:
        for threads, step in itertools.product(sorted({1, before}), (0.5, 1.0, 2.0, 6.0)):
            set_threads(threads)
            yield _coder(x, np.rint(x / step + dither).astype(np.int16), step, threads, rounds)
    finally:
        set_threads(before)


def _coder(x: Vector, q: npt.NDArray[np.int16], step: float, threads: int, rounds: int) -> Coder:
    data, max_value = encode_integers(q), int(np.abs(q).max())
    times = Times(x, rounds, lambda _: encode_integers(q), lambda _: decode_integers(data, q.size, max_value))
    return Coder(
        step=step,
        size=q.size,
        threads=threads,
        bits=8 * len(data) / q.size,
        encode_ratio=times.ratio(1),
        decode_ratio=times.ratio(2),
        encode_millions=q.size / times.seconds(1) / 1e6,
        decode_millions=q.size / times.seconds(2) / 1e6,
    )


def draw(measured: Sequence[Point], path: Path) -> Path:
    """Bits against NMSE, unbiased and biased, with the rate-distortion bound for a normal vector."""
    figure, axes = report.subplots(2, 11, 5.2, sharey=True)
    bits = np.linspace(0.05, 8, 200)
    possible = np.exp2(-2 * bits)
    bounds = {True: possible / (1 - possible), False: possible}
    titles = {True: "unbiased, on clients' deltas", False: "biased, on x − x̂ of the server"}
    for axis, unbiased in zip(axes, (True, False), strict=True):
        axis.plot(bits, bounds[unbiased], color="#333333", linestyle="--", label="bound for a normal vector")
        for k, family in enumerate(FAMILIES):
            mine = [p for p in measured if p.family == family and p.unbiased == unbiased]
            if mine:
                mine.sort(key=lambda p: p.bits)
                axis.plot([p.bits for p in mine], [p.nmse for p in mine], "o-", color=f"C{k % 10}",
                          linewidth=1.2, markersize=4, label=family)  # fmt: skip
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlim(0.15, 9)
        axis.set_xticks(TICKS, [f"{bits:g}" for bits in TICKS])
        axis.minorticks_off()
        axis.set_ylim(3e-4, 8)
        axis.set_title(titles[unbiased], fontsize=10)
        axis.set_xlabel("bits a coordinate")
    axes[0].set_ylabel("squared error ÷ squared norm")
    report.legend(figure, axes)
    report.save(figure, path)
    return path

"""Slow twins: the quantizers and the paper's three algorithms, line by line, in plain numpy.

Nothing here is fast and nothing here comes from the package but the names of random streams. Quantizers are
functions (x, seed) -> Q(x) that never see a byte; the algorithms hold arrays, not frames.
"""

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from qafel.streams import derive

Vector = npt.NDArray[np.float32]
TwinQuantizer = Callable[[Vector, int], Vector]
F32 = np.float32


def random_words(seed: int, first: int, count: int) -> npt.NDArray[np.uint32]:
    """Words of the counter-based stream."""
    mask = (1 << 64) - 1
    z = (seed + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    z ^= z >> 31
    key0, key1 = z & 0xFFFFFFFF, z >> 32
    words = []
    for k in range(first, first + count):
        h = (k + key0) & 0xFFFFFFFF
        h ^= h >> 16
        h = h * 0x21F0AAAD & 0xFFFFFFFF
        h ^= key1
        h ^= h >> 15
        h = h * 0x735A2D97 & 0xFFFFFFFF
        h ^= h >> 15
        words.append(h)
    return np.array(words, np.uint32)


def random_halves(seed: int, count: int) -> list[int]:
    """The 16 random bits of coordinates 0, 1, …"""
    return [int(w >> shift & 0xFFFF) for w in random_words(seed, 0, -(-count // 2)) for shift in (0, 16)][
        :count
    ]


def squared_norm(x: Vector) -> float:
    """Σ x²: sixteen lanes, the lanes in order, then the tail."""
    squares = [float(v) * float(v) for v in x]
    whole = len(squares) // 16 * 16
    total = 0.0
    for lane in range(16):
        partial = 0.0
        for value in squares[lane:whole:16]:
            partial += value
        total += partial
    for value in squares[whole:]:
        total += value
    return total


def identity(x: Vector, seed: int) -> Vector:
    """Full precision."""
    del seed
    return x.copy()


def qsgd(levels: int, bucket: int | None = None, norm: str = "l2") -> TwinQuantizer:
    """QSGD of at most 8 bits for numbers of ordinary size."""

    def quantize(x: Vector, seed: int) -> Vector:
        halves, out = random_halves(seed, x.size), np.zeros_like(x)
        width = bucket or x.size
        for start in range(0, x.size, width):
            piece = x[start : start + width]
            scale = F32(np.abs(piece).max()) if norm == "max" else F32(math.sqrt(squared_norm(piece)))
            if scale == 0:
                continue
            full = F32(levels * 65536)
            rate = F32(full / scale)
            if F32(scale * rate) > full:
                rate = np.nextafter(rate, F32(0))
            step = F32(scale / F32(levels))
            if F32(step * F32(levels)) > scale:
                step = np.nextafter(step, F32(0))
            for i, value in enumerate(piece, start):
                fixed = int(F32(F32(value * rate) + F32(levels * 65536 + 0.5)))
                level = (fixed + halves[i] >> 16) - levels
                out[i] = F32(level) * step
        return out

    return quantize


def affine(bits: int, tensors: list[tuple[int, bool]] | None = None) -> TwinQuantizer:
    """Min–max quantization; ``tensors`` are (size, quantized) in order."""

    def quantize(x: Vector, seed: int) -> Vector:
        del seed
        out, start, top = x.copy(), 0, 2**bits - 1
        for size, quantized in tensors or [(x.size, True)]:
            piece = x[start : start + size].astype(np.float64)
            low, high = min(piece.min(), 0.0), max(piece.max(), 0.0)
            step = (high - low) / top
            if quantized and step:
                zero = np.rint(-low / step)
                out[start : start + size] = (np.clip(np.rint(piece / step) + zero, 0, top) - zero) * step
            start += size
        return out

    return quantize


def topk(fraction: float) -> TwinQuantizer:
    """The k largest, the lower position first among equals."""

    def quantize(x: Vector, seed: int) -> Vector:
        del seed
        order = sorted(range(x.size), key=lambda i: (-abs(x[i]), i))
        out = np.zeros_like(x)
        for i in order[: math.ceil(fraction * x.size)]:
            out[i] = x[i]
        return out

    return quantize


def randk(fraction: float, *, scaled: bool) -> TwinQuantizer:
    """k random ones by selection sampling."""

    def quantize(x: Vector, seed: int) -> Vector:
        count, out = math.ceil(fraction * x.size), np.zeros_like(x)
        words, wanted = random_words(seed, 0, 2 * x.size), count
        for i in range(x.size):
            u = (int(words[2 * i]) << 21 ^ int(words[2 * i + 1]) >> 11) * 2.0**-53
            if u * (x.size - i) < wanted:
                out[i] = x[i] * F32(x.size / count) if scaled else x[i]
                wanted -= 1
        return out

    return quantize


BITS = (0.0296, 0.0725, 0.1590, 0.3125, 0.5508, 0.8757, 1.3960, 1.8984, 2.4413, 2.9536, 3.4924, 3.9959)
STEPS = (4.5, 4.0, 3.5, 3.0, 2.5, 2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25)
STEP_OF_BITS = tuple(zip(BITS, STEPS, strict=True))
"""Steps of ``rotated``, in units of the rms of a block, by bits per coordinate."""


def step_of_bits(bits: float) -> float:
    """Linear interpolation in the table, constant beyond its ends."""
    for (min_bits, high), (max_bits, low) in itertools.pairwise(STEP_OF_BITS):
        if bits < max_bits:
            return high + min(max((bits - min_bits) / (max_bits - min_bits), 0.0), 1.0) * (low - high)
    return STEP_OF_BITS[-1][1]


def transformed(block: Vector) -> Vector:
    """The Hadamard transform of the columns of 32 × 32 numbers, times √32."""
    half = 1
    while half < 32:
        pairs = block.reshape(-1, 2, half, 32)
        block = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(32, 32)
        half *= 2
    return block


def random_signs(seed: int, block: int) -> list[Vector]:
    """The two matrices of signs of a block."""
    drawn = random_words(derive(seed, "rotation") & 0xFFFFFFFF, 64 * block, 64)
    return [
        np.array([[-1 if int(word) >> row & 1 else 1 for word in words] for row in range(32)], F32)
        for words in (drawn[:32], drawn[32:])
    ]


def turned(y: Vector, first: Vector, second: Vector) -> Vector:
    """Signs, transform, signs, transform: 1024 times as long."""
    y = transformed(transformed(first * y.reshape(32, 32)).T)
    return transformed(transformed(second * y).T)


def turned_back(y: Vector, first: Vector, second: Vector) -> Vector:
    """The inverse of ``turned``, again 1024 times as long."""
    y = transformed(transformed(y.reshape(32, 32)).T)
    return first * transformed(transformed(second * y).T)


def summed(numbers: Iterable[float]) -> float:
    """The sum, one after the other."""
    total = 0.0
    for number in numbers:
        total += float(number)
    return total


def rotated(bits: float) -> TwinQuantizer:
    """Rotation, dead zone, one factor for every block, rotation back; for numbers of ordinary size."""
    rounding, place = 1 / 3, 0.4

    def power_of(x: Vector) -> float:
        a, b, c, d = np.square(x.astype(np.float64)).reshape(8, 4, 32).transpose(1, 0, 2)
        sums = np.zeros(32)
        for row in (a + b) + (c + d):
            sums += row
        return summed(sums)

    def power_of_turned(y: Vector) -> float:
        sums = np.zeros(128, F32)
        for a, b in np.square(y).reshape(4, 2, 128):
            sums += a + b
        return summed(sums)

    def quantize(x: Vector, seed: int) -> Vector:
        count = -(-x.size // 1024)
        padded = np.concatenate([x, np.zeros(1024 * count - x.size, F32)]).reshape(count, 1024)
        powers = [power_of(row) for row in padded]
        total = summed(math.sqrt(power) for power in powers)
        scale = 2.0 ** -math.frexp(float(np.abs(x).max()))[1]
        out = np.zeros_like(padded)
        for block, power in enumerate(powers):
            if power <= max(powers) * 2.0**-50:
                continue
            step, signs = step_of_bits(bits * math.sqrt(power) * (count / total)), random_signs(seed, block)
            row = turned(padded[block] * F32(scale), *signs).ravel()
            energy = power_of_turned(row)
            rate = 1 / (step * math.sqrt(energy / 1024))
            limit = F32((1 - rounding) / rate)
            codes = [max(int(abs(float(v)) * rate + rounding), 1) if abs(v) >= limit else 0 for v in row]
            if not any(codes):
                codes[int(np.argmax(np.abs(row)))] = 1
            product = summed(
                abs(float(v)) * (k - rounding + place) for v, k in zip(row, codes, strict=True) if k
            )
            exact = int(np.array(energy / product / 1024, F32).view(np.uint32))
            factor = np.array((exact + 0x10000 >> 17) << 17, np.uint32).view(F32) * F32(1 / scale)
            points = [factor * F32((k - rounding + place) / 1024) if k else F32(0) for k in codes]
            out[block] = turned_back(np.array(points, F32) * np.sign(row), *signs).ravel()
        return out.ravel()[: x.size]

    return quantize


def grouped_power(x: Vector) -> float:
    """Σ x²: in float32 for every place in a group of 512, four groups at a time, anew every 256 groups."""
    total = 0.0
    for start in range(0, x.size, 256 * 512):
        squares = np.square(x[start : start + 256 * 512])
        whole = squares.size // 2048 * 2048
        sums = np.zeros(512, F32)
        for a, b, c, d in squares[:whole].reshape(-1, 4, 512):
            sums += (a + b) + (c + d)
        for group in range(whole, squares.size, 512):
            rest = squares[group : group + 512]
            sums[: rest.size] += rest
        partial = 0.0
        for value in sums:
            partial += float(value)
        total += partial
    return total


def deadzone(step: float) -> TwinQuantizer:
    """Rounding towards zero, to points that the encoder chose; for numbers of ordinary size."""
    rounding = F32(1 / 3)

    def quantize(x: Vector, seed: int) -> Vector:
        del seed
        largest = float(np.abs(x).max())
        if not largest:
            return np.zeros_like(x)
        wanted = max(step * math.sqrt(grouped_power(x) / x.size), largest * (1 / 16000))
        width = F32(min(wanted, largest / (1 - float(rounding)) * (1 - 1e-6)))
        scaled = np.abs(x) * (F32(1) / width)
        codes = (scaled + rounding).astype(int)
        levels = np.arange(codes.max() + 1) - float(rounding)
        inside = (np.floor((scaled + rounding - codes.astype(F32)) * F32(65536))).astype(int)
        for cell in range(1, 5):
            chosen = inside[codes == cell if cell < 4 else codes >= 4]
            place = min(max(int(chosen.sum()) // len(chosen) >> 8, 0), 255) if len(chosen) else 128
            levels[cell : cell + 1 if cell < 4 else None] += (place + 0.5) / 256
        levels[0] = 0
        points = (levels * float(width)).astype(F32)
        out: Vector = np.where(x < 0, -points[codes], points[codes])
        return out

    return quantize


def contract(inner: TwinQuantizer, omega: float) -> TwinQuantizer:
    """1/(1 + ω) of an unbiased one."""
    return lambda x, seed: F32(1 / (1 + omega)) * inner(x, seed)


def induced(first: TwinQuantizer, rest: TwinQuantizer) -> TwinQuantizer:
    """C(x) + Q(x − C(x))."""

    def quantize(x: Vector, seed: int) -> Vector:
        head = first(x, derive(seed, "first"))
        return head + rest(x - head, derive(seed, "rest"))

    return quantize


def adam(
    x: Vector, g: Vector, t: int, moments: Any, *, rate: float, b1: float = 0.9, b2: float = 0.999, eps: float
) -> tuple[Vector, Any]:
    """Adam as in ``torch.optim``, along g."""
    m, v = moments or (np.zeros_like(x), np.zeros_like(x))
    m, v = F32(b1) * m + F32(1 - b1) * g, F32(b2) * v + F32(1 - b2) * (g * g)
    step = F32(rate / (1 - product(b1, t)))
    return x + step * (m / (np.sqrt(v) / F32(math.sqrt(1 - product(b2, t))) + F32(eps))), (m, v)


def adagrad(x: Vector, g: Vector, t: int, moments: Any, *, rate: float, eps: float) -> tuple[Vector, Any]:
    """Adagrad as in ``torch.optim``, along g."""
    del t
    v: Vector = g * g if moments is None else moments + g * g
    return (x + F32(rate) * (g / (np.sqrt(v) + F32(eps)))).astype(F32), v


def yogi(
    x: Vector, g: Vector, t: int, moments: Any, *, rate: float, b1: float, b2: float, eps: float
) -> tuple[Vector, Any]:
    """Yogi, Algorithm 2 of its paper, along g."""
    del t
    m, v = moments or (np.zeros_like(x), np.zeros_like(x))
    m, v = F32(b1) * m + F32(1 - b1) * g, v - F32(1 - b2) * (g * g) * np.sign(v - g * g)
    return x + F32(rate) * (m / (np.sqrt(v) + F32(eps))), (m, v)


def product(base: float, count: int) -> float:
    """``base`` to a power, by multiplications only: no library decides the last bit."""
    result = 1.0
    for bit in reversed(f"{count:b}"):
        result, base = result * base if bit == "1" else result, base * base
    return result


@dataclass
class TwinServer:
    """Algorithm 1, QAFeL-server."""

    x: Vector
    quantize: TwinQuantizer
    buffer_size: int
    rate: float = 1.0
    momentum: float = 0.0
    weight: Callable[[int], float] = lambda tau: 1.0
    seed: int = 0
    direct: bool = False
    lookahead: float = 0.0
    optimizer: Callable[[Vector, Vector, int, Any], tuple[Vector, Any]] | None = None
    version: int = 0
    count: int = 0
    hidden: Vector = field(init=False)

    def __post_init__(self) -> None:
        self.hidden = self.x.copy()  # line 1: x̂⁰ ← x⁰
        self.total = np.zeros_like(self.x)
        self.m = np.zeros_like(self.x)
        self.moments: Any = None
        self.late: list[int] = []

    def receive(self, delta: Vector, version: int) -> Vector | None:
        """Lines 5 to 16; returns q when a step was taken."""
        self.total = self.total + F32(self.weight(self.version - version)) * delta
        self.count += 1
        self.late.append(self.version - version)
        if self.count < self.buffer_size:
            return None
        before = self.x
        mean = self.total / F32(self.buffer_size)
        if self.optimizer is None:
            self.m = F32(self.momentum) * self.m + mean
            self.x = self.x + F32(self.rate) * self.m
        else:
            self.x, self.moments = self.optimizer(self.x, mean, self.version + 1, self.moments)
        middle = sorted(self.late)[(len(self.late) - 1) // 2]
        staleness = sum(min(tau, 30 * max(1, middle)) for tau in self.late) / self.buffer_size
        lead = F32(self.lookahead * staleness) * (self.x - before)
        target = (self.x if self.direct else self.x - self.hidden) + lead
        q = self.quantize(target, derive(self.seed, "increment", self.version))
        self.hidden = q if self.direct else self.hidden + q
        self.total, self.count, self.version = np.zeros_like(self.x), 0, self.version + 1
        self.late = []
        return q


@dataclass
class TwinClient:
    """Algorithms 2 and 3, QAFeL-client and QAFeL-client-background."""

    number: int
    hidden: Vector
    quantize: TwinQuantizer
    seed: int = 0
    version: int = 0
    tasks: int = 0

    def background(self, q: Vector, *, direct: bool = False) -> None:
        """x̂ ← x̂ + q."""
        self.hidden = q if direct else self.hidden + q
        self.version += 1

    def train(self, trainer: Callable[[Vector], Vector]) -> tuple[Vector, int]:
        """The quantized y_P − y_0, and the version it started from."""
        seed = derive(derive(self.seed, "task", self.number, self.tasks), "update")
        self.tasks += 1
        return self.quantize(trainer(self.hidden.copy()), seed), self.version

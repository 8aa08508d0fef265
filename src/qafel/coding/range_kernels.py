"""The adaptive binary range coder for small integers. Integer arithmetic only: the same on every machine.

A whole number q is spelled as binary decisions: is |q| > 0, > 1, … (up to ``UNARY``, then Elias gamma in
plain bits), and whether its sign is the predicted one. Each decision has an adaptive probability: the mean of
four estimates, a fast and a slow one for how large the numbers just before were, and the same for how large
the prediction is. The prediction is linear in the last ``TAPS`` + 1 numbers, with weights that learn as they
go (normalised least mean squares): neighbouring weights of a layer move together, and nobody has to say where
a layer begins.

The coder is the carry-propagating one: ``low`` and ``range`` in 32 bits, a byte at a time. The end is the one
byte that names a point of the last interval; a decoder insists on it, so that there is one coding.
"""

import numpy as np
from numba import njit

I16 = np.int16
I32 = np.int32
I64 = np.int64
U8 = np.uint8
U64 = np.uint64
UINT = np.uintp

TAPS = 64
CLIP = 7
"""The predictor sees numbers up to this size."""
UNARY = 14
FAST, SLOW = 5, 7
ACTIVITY = (512, 2048, 5120)
"""Limits between the contexts of neighbouring magnitudes, in units of 2⁻¹²."""
PREDICTED = (4096, 9830, 19661, 32768, 52429, 85197)
"""Limits between the contexts of the prediction's magnitude, in units of 2⁻¹⁶."""
CONTEXTS = len(ACTIVITY) + 1 + len(PREDICTED) + 1
BINS = UNARY + 2
"""Decisions on the magnitude, then on the sign of a one, and of anything larger."""
ONE = 1 << 16
TOP, BITS = 1 << 24, 15
MOST_BYTES = 32
"""No number takes more."""
MASK = U64(0xFFFFFFFF)
STEP = 0.02
RECIPROCALS = np.array(
    [0] + [round(STEP * 2**20 / (energy + 2)) for energy in range(1, (TAPS + 1) * CLIP * CLIP + 1)], np.int32
)


@njit(nogil=True, cache=True, inline="always")
def _chance(chances, near, ahead, place):
    """The probability of a yes, in units of 2⁻¹⁵, never 0 or 1."""
    p = (
        chances[near, place, 0]
        + chances[near, place, 1]
        + chances[ahead, place, 0]
        + chances[ahead, place, 1]
    )
    return min(max(p >> 3, 32), (1 << BITS) - 32)


@njit(nogil=True, cache=True, inline="always")
def _learn(chances, near, ahead, place, yes):
    target = ONE - 1 if yes else 0
    for context in (near, ahead):
        count = chances[context, place, 2]
        chances[context, place, 0] += (target - chances[context, place, 0]) >> min(count, FAST)
        chances[context, place, 1] += (target - chances[context, place, 1]) >> count
        chances[context, place, 2] = min(count + 1, SLOW)


@njit(nogil=True, cache=True)
def _fresh():
    """(chances, weights) before anything was seen."""
    chances = np.full((CONTEXTS, BINS, 3), ONE // 2, I32)
    chances[:, :, 2] = 1
    return chances, np.zeros(TAPS + 1, I32)


@njit(nogil=True, cache=True, inline="always")
def _predict(weights, history, i, newest, energy):
    """Σ weights · the last numbers, in units of 2⁻¹⁶. The newest stays in a register: the processor would
    wait for it to be stored before it could be loaded among its neighbours.
    """
    if energy == 0:
        return I32(0)
    total = I32(weights[TAPS] * newest)
    for k in range(UINT(TAPS)):
        total = I32(total + I32(weights[k] * history[UINT(i) + k]))
    return min(max(total, I32(-8 * ONE)), I32(8 * ONE))


@njit(nogil=True, cache=True, inline="always")
def _adapt(weights, history, i, newest, energy, error):
    """Weights a step down the squared error."""
    if energy:
        gain = I32((I64(error) * I64(RECIPROCALS[energy])) >> 20)
        weights[TAPS] = I32(weights[TAPS] + I32(gain * newest))
        for k in range(UINT(TAPS)):
            weights[k] = I32(weights[k] + I32(gain * history[UINT(i) + k]))


@njit(nogil=True, cache=True, inline="always")
def _contexts(prediction, activity):
    """The contexts of the numbers before, and of the prediction."""
    near, ahead = 0, len(ACTIVITY) + 1
    for limit in ACTIVITY:
        near += activity >= limit
    for limit in PREDICTED:
        ahead += abs(prediction) >= limit
    return near, ahead


@njit(nogil=True, cache=True, inline="always")
def _carry(out, at, low):
    """Add the carry of ``low`` to the bytes written; ``low`` without it."""
    if low > MASK:
        k = at - 1
        while out[k] == 255:
            out[k] = 0
            k -= 1
        out[k] += U8(1)
    return low & MASK


@njit(nogil=True, cache=True, inline="always")
def _put(out, at, low, span, bound, yes):
    """Code a decision whose yes has the first ``bound`` of the span."""
    if yes:
        span = bound
    else:
        low = _carry(out, at, low + bound)
        span -= bound
    while span < U64(TOP):
        out[at] = U8(low >> U64(24))
        at += 1
        low = (low << U64(8)) & MASK
        span <<= U64(8)
    return at, low, span


@njit(nogil=True, cache=True, inline="always")
def _get(data, at, code, span, bound):
    """The decision that ``_put`` coded; beyond the end there are zeros."""
    yes = code < bound
    if yes:
        span = bound
    else:
        code -= bound
        span -= bound
    while span < U64(TOP):
        byte = data[at] if at < data.size else U8(0)
        at += 1
        code = (code << U64(8)) | U64(byte)
        span <<= U64(8)
    return yes, at, code, span


@njit(nogil=True, cache=True)
def encode(q, out):
    """Code ``q`` into ``out``; the number of bytes, or −1 where there is no room for them."""
    chances, weights = _fresh()
    history = np.zeros(q.size + TAPS + 1, I32)
    low, span = U64(0), U64(MASK)
    at, activity, energy, newest = 0, 0, 0, I32(0)
    room = out.size - MOST_BYTES
    for i in range(q.size):
        if at > room:
            return -1
        value = I32(q[i])
        magnitude = abs(value)
        prediction = _predict(weights, history, i, newest, energy)
        near, ahead = _contexts(prediction, activity)
        for place in range(UNARY):
            yes = magnitude > place
            bound = (span >> U64(BITS)) * U64(_chance(chances, near, ahead, place))
            at, low, span = _put(out, at, low, span, bound, yes)
            _learn(chances, near, ahead, place, yes)
            if not yes:
                break
        if magnitude >= UNARY:
            rest = magnitude - UNARY + 1
            length = 0
            while rest >> (length + 1):
                length += 1
            for k in range(2 * length + 1):
                bit = k >= length and (rest >> (2 * length - k)) & 1 == 1
                at, low, span = _put(out, at, low, span, span >> U64(1), bit)
        if magnitude:
            place = UNARY + (magnitude > 1)
            yes = (value > 0) == (prediction >= 0)
            bound = (span >> U64(BITS)) * U64(_chance(chances, near, ahead, place))
            at, low, span = _put(out, at, low, span, bound, yes)
            _learn(chances, near, ahead, place, yes)
        seen = min(max(value, I32(-CLIP)), I32(CLIP))
        _adapt(weights, history, i, newest, energy, I32(seen * ONE - prediction))
        energy += seen * seen - history[i] * history[i]
        history[i + TAPS + 1] = newest = seen
        activity += ((abs(seen) << 12) - activity) >> 4
    point = _carry(out, at, (low + U64(TOP - 1)) & ~U64(TOP - 1))
    out[at] = U8(point >> U64(24))
    return at + 1


@njit(nogil=True, cache=True)
def decode(data, most, q):
    """The inverse of ``encode``; 1 if ``data`` is not its coding of numbers up to ``most``."""
    chances, weights = _fresh()
    history = np.zeros(q.size + TAPS + 1, I32)
    code, span, at = U64(0), U64(MASK), 4
    for k in range(4):
        code = (code << U64(8)) | U64(data[k] if k < data.size else U8(0))
    activity, energy, newest = 0, 0, I32(0)
    for i in range(q.size):
        if at > data.size + 4:
            return 1
        prediction = _predict(weights, history, i, newest, energy)
        near, ahead = _contexts(prediction, activity)
        magnitude = 0
        for place in range(UNARY):
            bound = (span >> U64(BITS)) * U64(_chance(chances, near, ahead, place))
            yes, at, code, span = _get(data, at, code, span, bound)
            _learn(chances, near, ahead, place, yes)
            if not yes:
                break
            magnitude += 1
        if magnitude == UNARY:
            length, rest, yes = 0, 1, False
            while not yes:
                yes, at, code, span = _get(data, at, code, span, span >> U64(1))
                length += not yes
                if length > 15:
                    return 1
            for _ in range(length):
                yes, at, code, span = _get(data, at, code, span, span >> U64(1))
                rest = 2 * rest + yes
            magnitude += rest - 1
        if magnitude > most:
            return 1
        value = I32(magnitude)
        if magnitude:
            place = UNARY + (magnitude > 1)
            bound = (span >> U64(BITS)) * U64(_chance(chances, near, ahead, place))
            yes, at, code, span = _get(data, at, code, span, bound)
            _learn(chances, near, ahead, place, yes)
            if yes != (prediction >= 0):
                value = I32(-value)
        q[i] = value
        seen = min(max(value, I32(-CLIP)), I32(CLIP))
        _adapt(weights, history, i, newest, energy, I32(seen * ONE - prediction))
        energy += seen * seen - history[i] * history[i]
        history[i + TAPS + 1] = newest = seen
        activity += ((abs(seen) << 12) - activity) >> 4
    return 1 if at - 3 != data.size or code >= U64(TOP) else 0

"""An adaptive binary range coder for small integers. Integer arithmetic only: the same bytes everywhere.

An integer q is coded as binary decisions: whether |q| > 0, > 1, … up to ``UNARY`` (the excess follows as an
Elias gamma code of equally likely bits), then whether its sign is the predicted one. The probability of a
decision is the mean of four adaptive estimates, a fast and a slow one in each of two contexts: the magnitude
of the numbers just before, and the magnitude of the prediction. The prediction is a linear combination of the
last ``TAPS`` + 1 numbers whose weights adapt by normalised least mean squares. Neighbouring weights of a
layer move together, so this needs no knowledge of where a layer begins.

The coder propagates carries: ``low`` and ``range`` have 32 bits, bytes are written one at a time. The coding
ends with the one byte that names a point of the last interval; decoders reject any other, so that every
vector has exactly one coding.
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
"""The predictor clips numbers to ±CLIP."""
UNARY = 14
FAST, SLOW = 5, 7
ACTIVITY = (512, 2048, 5120)
"""Limits between the contexts of neighbouring magnitudes, in units of 2⁻¹²."""
PREDICTED = (4096, 9830, 19661, 32768, 52429, 85197)
"""Limits between the contexts of the prediction's magnitude, in units of 2⁻¹⁶."""
CONTEXTS = len(ACTIVITY) + 1 + len(PREDICTED) + 1
BINS = UNARY + 2
"""Decisions on the magnitude, on the sign of ±1, and on the sign of larger numbers."""
ONE = 1 << 16
TOP, BITS = 1 << 24, 15
MAX_NUMBER_BYTES = 32
"""Upper bound on the bytes of one number."""
MASK = U64(0xFFFFFFFF)
STEP = 0.02
RECIPROCALS = np.array(
    [0] + [round(STEP * 2**20 / (energy + 2)) for energy in range(1, (TAPS + 1) * CLIP * CLIP + 1)], np.int32
)


@njit(nogil=True, cache=True, inline="always")
def _chance(chances, near, ahead, place):
    """Return the probability of a yes, in units of 2⁻¹⁵, never 0 or 1."""
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
    """Return the initial (chances, weights)."""
    chances = np.full((CONTEXTS, BINS, 3), ONE // 2, I32)
    chances[:, :, 2] = 1
    return chances, np.zeros(TAPS + 1, I32)


@njit(nogil=True, cache=True, inline="always")
def _predict(weights, history, i, newest, energy):
    """Return Σ weights · the last numbers, in units of 2⁻¹⁶. The newest number is passed in a register:
    loading it from ``history`` would wait for the store that has just been issued.
    """
    if energy == 0:
        return I32(0)
    total = I32(weights[TAPS] * newest)
    for k in range(UINT(TAPS)):
        total = I32(total + I32(weights[k] * history[UINT(i) + k]))
    return min(max(total, I32(-8 * ONE)), I32(8 * ONE))


@njit(nogil=True, cache=True, inline="always")
def _adapt(weights, history, i, newest, energy, error):
    """Move the weights one step down the gradient of the squared error."""
    if energy:
        gain = I32((I64(error) * I64(RECIPROCALS[energy])) >> 20)
        weights[TAPS] = I32(weights[TAPS] + I32(gain * newest))
        for k in range(UINT(TAPS)):
            weights[k] = I32(weights[k] + I32(gain * history[UINT(i) + k]))


@njit(nogil=True, cache=True, inline="always")
def _contexts(prediction, activity):
    """Return the context of the numbers before and the context of the prediction."""
    near, ahead = 0, len(ACTIVITY) + 1
    for limit in ACTIVITY:
        near += activity >= limit
    for limit in PREDICTED:
        ahead += abs(prediction) >= limit
    return near, ahead


@njit(nogil=True, cache=True, inline="always")
def _carry(out, at, low):
    """Add the carry of ``low`` to the bytes already written. Returns ``low`` without it."""
    if low > MASK:
        k = at - 1
        while out[k] == 255:
            out[k] = 0
            k -= 1
        out[k] += U8(1)
    return low & MASK


@njit(nogil=True, cache=True, inline="always")
def _put(out, at, low, span, bound, yes):
    """Code a decision; yes has the first ``bound`` of the span."""
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
    """Return the decision that ``_put`` coded. Bytes beyond the end count as zeros."""
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
    """Code ``q`` into ``out``. Returns the number of bytes, or −1 if ``out`` is too short."""
    chances, weights = _fresh()
    history = np.zeros(q.size + TAPS + 1, I32)
    low, span = U64(0), U64(MASK)
    at, activity, energy, newest = 0, 0, 0, I32(0)
    room = out.size - MAX_NUMBER_BYTES
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
def decode(data, max_magnitude, q):
    """Fill ``q``, the inverse of ``encode``. Returns 1 if ``data`` is not the coding of numbers up to
    ``max_magnitude``, else 0.
    """
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
        if magnitude > max_magnitude:
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

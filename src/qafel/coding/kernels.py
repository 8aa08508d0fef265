"""Numba kernels of ``planes`` and ``indices``. Bytes are defined in those modules; this one is only fast."""

import numpy as np
from numba import njit

from qafel.coding.planes import GROUP

U8 = np.uint8
U64 = np.uint64
UINT = np.uintp
HALF = GROUP // 2


@njit(nogil=True, cache=True)
def pack(codes, first, count, width, out, at):
    """Pack ``codes[first : first + count]``, of at most 8 bits, at ``out[at:]``; return where it ends."""
    end = first + count
    if width == 4:
        while first + GROUP <= end:
            low, high, to = UINT(first), UINT(first + HALF), UINT(at)
            for j in range(UINT(HALF)):
                out[to + j] = U8(codes[low + j] | U8(codes[high + j] << U8(4)))
            first += GROUP
            at += HALF
    while first < end:
        group = min(GROUP, end - first)
        at = pack_planes(codes, first, group, width, out, at)
        first += group
    return at


@njit(nogil=True, cache=True)
def pack_planes(codes, first, count, width, out, at):
    """Pack one group, plane by plane."""
    shift = 0
    for part in (8, 4, 2, 1):
        if width & part:
            m = (count * part + 7) >> 3
            to, place = UINT(at), 0
            for j in range(UINT(m)):
                out[to + j] = U8(0)
            mask = U8((1 << part) - 1)
            for start in range(0, count, m):
                of = UINT(first + start)
                for j in range(UINT(min(m, count - start))):
                    bits = U8(U8(codes[of + j] >> U8(shift)) & mask)
                    out[to + j] = U8(out[to + j] | U8(bits << U8(place)))
                place += part
            shift += part
            at += m
    return at


@njit(nogil=True, cache=True)
def unpack(data, at, count, width, codes, first):
    """The inverse of ``pack``; bits that belong to no code are not looked at."""
    end = first + count
    if width == 4:
        while first + GROUP <= end:
            low, high, of = UINT(first), UINT(first + HALF), UINT(at)
            for j in range(UINT(HALF)):
                byte = data[of + j]
                codes[low + j] = U8(byte & U8(15))
                codes[high + j] = U8(byte >> U8(4))
            first += GROUP
            at += HALF
    while first < end:
        group = min(GROUP, end - first)
        at = unpack_planes(data, at, group, width, codes, first)
        first += group
    return at


@njit(nogil=True, cache=True)
def unpack_planes(data, at, count, width, codes, first):
    """Unpack one group, plane by plane."""
    shift = 0
    for part in (8, 4, 2, 1):
        if width & part:
            m = (count * part + 7) >> 3
            of, place = UINT(at), 0
            mask = U8((1 << part) - 1)
            for start in range(0, count, m):
                to = UINT(first + start)
                keep = U8((1 << shift) - 1)
                for j in range(UINT(min(m, count - start))):
                    bits = U8(U8(U8(data[of + j] >> U8(place)) & mask) << U8(shift))
                    codes[to + j] = U8(U8(codes[to + j] & keep) | bits)
                place += part
            shift += part
            at += m
    return at


@njit(nogil=True, cache=True)
def stray_bits(data, at, count, width):
    """Bits of a group that belong to no code, or-ed together: zero in a valid group."""
    stray = 0
    for part in (8, 4, 2, 1):
        if width & part:
            m = (count * part + 7) >> 3
            for slot in range(count, m * (8 // part)):
                t, j = slot // m, slot % m
                stray |= (data[at + j] >> (t * part)) & ((1 << part) - 1)
            at += m
    return stray


@njit(nogil=True, cache=True)
def write_gaps(indices, rice, out):
    """Rice-code the gaps of sorted ``indices`` into ``out``."""
    word = U64(0)
    used = 0
    at = 0
    previous = -1
    for index in indices:
        gap = index - previous - 1
        previous = index
        for _ in range(gap >> rice):
            word |= U64(1) << U64(used)
            used += 1
            if used == 8:
                out[at] = U8(word)
                at += 1
                word = U64(0)
                used = 0
        word |= U64(gap & ((1 << rice) - 1)) << U64(used + 1)
        used += 1 + rice
        while used >= 8:
            out[at] = U8(word & U64(255))
            at += 1
            word >>= U64(8)
            used -= 8
    if used:
        out[at] = U8(word)


@njit(nogil=True, cache=True)
def read_gaps(data, rice, size, indices):
    """The inverse of ``write_gaps``; False unless ``data`` codes as many positions as there is room for."""
    bits = data.size * 8
    at = 0
    previous = -1
    for k in range(indices.size):
        quotient = 0
        while at < bits and (data[at >> 3] >> (at & 7)) & 1:
            quotient += 1
            at += 1
        at += 1
        if at + rice > bits:
            return False
        low = 0
        for b in range(rice):
            low |= ((data[at >> 3] >> (at & 7)) & 1) << b
            at += 1
        previous += 1 + (quotient << rice) + low
        if previous >= size:
            return False
        indices[k] = previous
    if bits - at >= 8:
        return False
    while at < bits:
        if (data[at >> 3] >> (at & 7)) & 1:
            return False
        at += 1
    return True


@njit(nogil=True, cache=True)
def pack_integers(q, most, width, out):
    """Plane-pack q + most, in codes of ``width`` bits."""
    low, high = np.zeros(GROUP, U8), np.zeros(GROUP, U8)
    at = 0
    for group in range(0, q.size, GROUP):
        count = min(GROUP, q.size - group)
        for j in range(count):
            code = np.int32(q[group + j]) + most
            low[j], high[j] = U8(code & 255), U8(code >> 8)
        at = pack(low, 0, count, min(width, 8), out, at)
        if width > 8:
            at = pack(high, 0, count, width - 8, out, at)


@njit(nogil=True, cache=True)
def unpack_integers(data, most, width, q, top=-1):
    """The inverse of ``pack_integers``; 1 if a code is above ``top`` (2·most) or a bit belongs to no code."""
    top = 2 * most if top < 0 else top
    low, high = np.zeros(GROUP, U8), np.zeros(GROUP, U8)
    at = 0
    for group in range(0, q.size, GROUP):
        count = min(GROUP, q.size - group)
        if stray_bits(data, at, count, min(width, 8)):
            return 1
        at = unpack(data, at, count, min(width, 8), low, 0)
        if width > 8:
            if stray_bits(data, at, count, width - 8):
                return 1
            at = unpack(data, at, count, width - 8, high, 0)
        for j in range(count):
            code = np.int32(low[j]) | np.int32(high[j]) << 8
            if code > top:
                return 1
            q[group + j] = code - most
    return 0

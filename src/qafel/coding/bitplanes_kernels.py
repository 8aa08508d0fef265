"""Numba kernels of ``bitplanes``, which defines the format."""

import numpy as np
from numba import njit

from qafel.coding.bitplanes import GROUP
from qafel.coding.numbers import I32, U8, UINT

HALF = GROUP // 2


@njit(nogil=True, cache=True)
def pack(codes, first, count, width, out, at):
    """Pack ``codes[first : first + count]``, of at most 8 bits, at ``out[at:]``. Returns where they end."""
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
    """The inverse of ``pack``. Ignores bits that belong to no code; see ``stray_bits``."""
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
    """Return the bits of a group that belong to no code, or-ed together: zero in a valid group."""
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
def pack_integers(q, offset, width, out):
    """Pack q + offset in codes of ``width`` bits, at most 16."""
    low, high = np.zeros(GROUP, U8), np.zeros(GROUP, U8)
    at = 0
    for group in range(0, q.size, GROUP):
        count = min(GROUP, q.size - group)
        for j in range(count):
            code = np.int32(q[group + j]) + offset
            low[j], high[j] = U8(code & 255), U8(code >> 8)
        at = pack(low, 0, count, min(width, 8), out, at)
        if width > 8:
            at = pack(high, 0, count, width - 8, out, at)


@njit(nogil=True, cache=True)
def unpack_integers(data, offset, width, q):
    """The inverse of ``pack_integers``. Returns 1 if a code is above 2·offset or a bit belongs to no code,
    else 0.
    """
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
            if code > 2 * offset:
                return 1
            q[group + j] = code - offset
    return 0


@njit(nogil=True, cache=True)
def invalid_codes(data, width, max_code, stop):
    """Return 1 if one of ``stop`` codes is above ``max_code`` or a bit belongs to no code, else 0."""
    start = 0
    if width == 4:
        whole = stop & ~(GROUP - 1)
        top = U8(0)
        for j in range(UINT(whole // 2)):
            byte = data[j]
            top = max(top, max(U8(byte & U8(15)), U8(byte >> U8(4))))
        if top > max_code:
            return 1
        start = whole
    low = np.zeros(GROUP, U8)
    high = np.zeros(GROUP, U8)
    narrow = min(width, 8)
    for group in range(start, stop, GROUP):
        count = min(GROUP, stop - group)
        at = group // 8 * width
        stray = stray_bits(data, at, count, narrow)
        at = unpack(data, at, count, narrow, low, 0)
        if width > 8:
            stray |= stray_bits(data, at, count, width - 8)
            unpack(data, at, count, width - 8, high, 0)
        top = 0
        for j in range(count):
            top = max(top, I32(low[j]) | (I32(high[j]) << 8))
        if top > max_code or stray:
            return 1
    return 0

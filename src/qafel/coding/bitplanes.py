"""Bit-plane packing: codes of ``width`` bits without gaps, in an order that suits vector units.

Codes are packed in groups of ``GROUP`` = 512; the last group may be shorter. The bits of a code are cut,
lowest first, into parts of 8, 4, 2 and 1 bits: 4 = 4, 3 = 2 + 1, 12 = 8 + 4, 16 = 8 + 8. A part of p bits of
a group of g codes is a plane of m = ⌈g·p/8⌉ bytes; byte j of it holds, from its low bits up, the parts of
codes j, j + m, j + 2m, … A full group takes exactly 64·width bytes, so a range of groups can be coded
independently of the others. Bits that belong to no code are zero; decoders reject any other value.

Neighbouring codes are stored in neighbouring bytes: packing is a shift and an or of whole registers, without
the shuffles that a contiguous bit string needs.
"""

from functools import cache, lru_cache

GROUP = 512


@cache
def parts(width: int) -> tuple[int, ...]:
    """Return the widths of the planes of a ``width``-bit code, in the order of the bytes."""
    low = (8,) if width >= 8 else ()
    rest = width - sum(low)
    return (*low, *(part for part in (8, 4, 2, 1) if rest & part))


@lru_cache(maxsize=256)
def packed_bytes(count: int, width: int) -> int:
    """Return the number of bytes that ``count`` codes of ``width`` bits take."""
    full, last = divmod(count, GROUP)
    return full * GROUP // 8 * width + sum(-(-last * part // 8) for part in parts(width))

"""LLVM instructions that numba does not expose: work on many numbers at once, and counting zero bits."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 32
_BIT, _WORD = ir.IntType(1), ir.IntType(32)
_NUMBERS = ir.VectorType(_WORD, LANES)
TILE = 8
_EXCHANGES = (
    (1, (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)),
    (2, (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)),
    (4, (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)),
)
"""Distance of the rows that exchange numbers, and which numbers of both the first and the second one gets."""
_ORDER = (0, 2, 1, 3, 4, 6, 5, 7)
"""Where the columns are after the exchanges."""


@intrinsic
def at_least(typing_context: Any, numbers: Any, start: Any, limit: Any) -> Any:
    """Compare ``LANES`` float32 numbers from ``start`` on: bit k is set if |number start + k| ≥ ``limit``."""
    del typing_context, start, limit

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, place, limit = arguments
        data = context.make_array(signature.args[0])(context, builder, array).data
        where = builder.bitcast(builder.gep(data, [place]), _NUMBERS.as_pointer())
        magnitudes = builder.and_(builder.load(where, align=4), ir.Constant(_NUMBERS, [0x7FFFFFFF] * LANES))
        undefined, zeros = ir.Constant(_NUMBERS, ir.Undefined), ir.Constant(_NUMBERS, [0] * LANES)
        first = builder.insert_element(undefined, builder.bitcast(limit, _WORD), ir.Constant(_WORD, 0))
        limits = builder.shuffle_vector(first, undefined, zeros)
        far = builder.icmp_unsigned(">=", magnitudes, limits)  # floats are ordered as their bits are
        return builder.bitcast(far, ir.IntType(LANES))

    return types.uint32(numbers, types.uintp, types.float32), build


@intrinsic
def nonzero(typing_context: Any, numbers: Any, start: Any) -> Any:
    """Compare ``LANES`` int16 numbers from ``start`` on: bit k is set if number start + k is not 0."""
    del typing_context, start

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, place = arguments
        data = context.make_array(signature.args[0])(context, builder, array).data
        kind = ir.VectorType(ir.IntType(16), LANES)
        where = builder.bitcast(builder.gep(data, [place]), kind.as_pointer())
        far = builder.icmp_unsigned("!=", builder.load(where, align=2), ir.Constant(kind, [0] * LANES))
        return builder.bitcast(far, ir.IntType(LANES))

    return types.uint32(numbers, types.uintp), build


@intrinsic
def transpose_tile(
    typing_context: Any, source: Any, start: Any, target: Any, other_start: Any, width: Any
) -> Any:
    """Transpose a tile of 8 × 8 float32 numbers: from ``start`` in one matrix of ``width`` columns to
    ``other_start`` in another one.
    """
    del typing_context, start, other_start, width
    row = ir.VectorType(ir.FloatType(), TILE)

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def places(array: int) -> list[Any]:
            data = context.make_array(signature.args[array])(context, builder, arguments[array]).data
            offsets = (builder.mul(arguments[4], ir.Constant(arguments[4].type, k)) for k in range(TILE))
            starts = (builder.gep(data, [builder.add(arguments[array + 1], offset)]) for offset in offsets)
            return [builder.bitcast(place, row.as_pointer()) for place in starts]

        rows = [builder.load(place, align=4) for place in places(0)]
        for distance, *masks in _EXCHANGES:
            for k in (k for k in range(TILE) if not k & distance):
                pair = rows[k], rows[k + distance]
                rows[k], rows[k + distance] = (
                    builder.shuffle_vector(*pair, ir.Constant(ir.VectorType(_WORD, TILE), mask))
                    for mask in masks
                )
        for place, column in zip(places(2), _ORDER, strict=True):
            builder.store(rows[column], place, align=4)
        return context.get_dummy_value()

    return types.void(source, types.uintp, target, types.uintp, types.uintp), build


@intrinsic
def zeros_below(typing_context: Any, value: Any) -> Any:
    """Count the zero bits below the lowest one of a uint64; 64 if all bits are zero."""
    del typing_context, value

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.cttz(arguments[0], ir.Constant(_BIT, 0))

    return types.uint64(types.uint64), build

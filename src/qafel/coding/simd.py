"""LLVM instructions that numba does not expose: comparing many numbers at once, and counting zero bits."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 32
_BIT, _WORD = ir.IntType(1), ir.IntType(32)
_NUMBERS = ir.VectorType(_WORD, LANES)


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
def zeros_below(typing_context: Any, value: Any) -> Any:
    """Count the zero bits below the lowest one of a uint64; 64 if all bits are zero."""
    del typing_context, value

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.cttz(arguments[0], ir.Constant(_BIT, 0))

    return types.uint64(types.uint64), build

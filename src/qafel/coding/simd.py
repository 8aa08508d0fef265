"""LLVM instructions that numba does not expose: comparing many numbers at once, and counting zero bits."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 32
_BIT, _COUNT = ir.IntType(1), ir.IntType(32)
_NUMBERS = ir.VectorType(ir.IntType(16), LANES)


def _broadcast(builder: Any, value: Any) -> Any:
    """Return a vector with ``value`` in every lane."""
    undefined = ir.Constant(_NUMBERS, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(_COUNT, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_COUNT, LANES), [0] * LANES))


@intrinsic
def beyond(typing_context: Any, numbers: Any, start: Any, limit: Any) -> Any:
    """Compare ``LANES`` int16 numbers from ``start`` on: bit k is set if |number start + k| > ``limit``."""
    del typing_context, start, limit

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, place, limit = arguments
        data = context.make_array(signature.args[0])(context, builder, array).data
        where = builder.bitcast(builder.gep(data, [place]), _NUMBERS.as_pointer())
        shifted = builder.add(builder.load(where, align=2), _broadcast(builder, limit))
        far = builder.icmp_unsigned(">", shifted, _broadcast(builder, builder.add(limit, limit)))
        return builder.bitcast(far, ir.IntType(LANES))

    return types.uint32(numbers, types.uintp, types.int16), build


@intrinsic
def zeros_below(typing_context: Any, value: Any) -> Any:
    """Count the zero bits below the lowest one of a uint64; 64 if all bits are zero."""
    del typing_context, value

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.cttz(arguments[0], ir.Constant(_BIT, 0))

    return types.uint64(types.uint64), build

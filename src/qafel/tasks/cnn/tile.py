# ruff: noqa: ARG001 (an intrinsic's arguments are read in its codegen)
"""The inner loops of the CNN kernels as LLVM vectors, because numba does not keep the sums in registers.

``tile1`` and ``tile4`` to ``tile7`` compute a register tile of a matrix product, 16 columns wide and that
many rows high; weights and out have rows of 32:

    out[h, :] = start[h, :] + Σ_r Σ_j source[r·row + h·height_step + j·step] · weights[r·weight_row + 32·j:]

A convolution and its gradients with respect to input and weights are this sum with different steps. Addresses
are in bytes, steps in floats. Seven rows of sixteen also fit into the registers of AVX2.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 16
_ROW = 4 * 32
"""Bytes of a row."""
_FLOAT, _INT, _INT32 = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_PLACES = ir.VectorType(_INT32, LANES)


def _number(k):
    return ir.Constant(_INT, k)


def _at(builder, address, kind):
    return builder.inttoptr(address, ir.PointerType(kind))


def _load(builder, address, kind=_VECTOR):
    return builder.load(_at(builder, address, kind), align=4)


def _fused(builder):
    """The multiply-add of vectors; on a machine without it, LLVM multiplies and adds."""
    name = "llvm.fmuladd.v16f32"
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), name)


def _tile(height):
    def codegen(context, builder, _signature, arguments):
        source, row, height_step, step, weights, weight_row, start, start_step, out, rows, count = arguments

        def floats(k):
            return builder.mul(k, _number(4))

        def phi(kind, value, block):
            node = builder.phi(kind)
            node.add_incoming(value, block)
            return node

        fma = _fused(builder)
        undefined = ir.Constant(_VECTOR, ir.Undefined)
        everywhere = ir.Constant(_PLACES, [0] * LANES)
        offsets = [floats(builder.mul(height_step, _number(h))) for h in range(height)]
        starts = [
            _load(builder, builder.add(start, floats(builder.mul(start_step, _number(h)))))
            for h in range(height)
        ]
        row_jump, weight_row_jump, jump = map(floats, (row, weight_row, step))
        entry = builder.block
        outer, inner, after, done = map(builder.append_basic_block, ("rows", "products", "after", "done"))
        builder.branch(outer)

        builder.position_at_end(outer)
        r = phi(_INT, _number(0), entry)
        source_row, weights_row = phi(_INT, source, entry), phi(_INT, weights, entry)
        row_sums = [phi(_VECTOR, value, entry) for value in starts]
        builder.branch(inner)

        builder.position_at_end(inner)
        j = phi(_INT, _number(0), outer)
        s, w = phi(_INT, source_row, outer), phi(_INT, weights_row, outer)
        sums = [phi(_VECTOR, value, outer) for value in row_sums]
        vector = _load(builder, w)
        new = []
        for h in range(height):
            scalar = _load(builder, builder.add(s, offsets[h]), _FLOAT)
            first = builder.insert_element(undefined, scalar, ir.Constant(_INT32, 0))
            spread = builder.shuffle_vector(first, undefined, everywhere)
            new.append(builder.call(fma, [spread, vector, sums[h]]))
        following = builder.add(j, _number(1))
        steps = [(j, following), (s, builder.add(s, jump)), (w, builder.add(w, _number(_ROW)))]
        for node, value in [*steps, *zip(sums, new, strict=True)]:
            node.add_incoming(value, inner)
        builder.cbranch(builder.icmp_signed("<", following, count), inner, after)

        builder.position_at_end(after)
        following = builder.add(r, _number(1))
        steps = [(r, following), (source_row, builder.add(source_row, row_jump))]
        steps.append((weights_row, builder.add(weights_row, weight_row_jump)))
        for node, value in [*steps, *zip(row_sums, new, strict=True)]:
            node.add_incoming(value, after)
        builder.cbranch(builder.icmp_signed("<", following, rows), outer, done)

        builder.position_at_end(done)
        for h in range(height):
            place = builder.add(out, _number(_ROW * h))
            builder.store(new[h], _at(builder, place, _VECTOR), align=4)
        return context.get_dummy_value()

    @intrinsic
    def tile(
        _typing, source, row, height_step, step, weights, weight_row, start, start_step, out, rows, count
    ):
        return types.void(*[types.int64] * 11), codegen

    return tile


tile1, tile4, tile5, tile6, tile7 = map(_tile, (1, 4, 5, 6, 7))


@intrinsic
def unpool(_typing, where, gradient, scale, first, second):
    """The gradient of max-pooling, for sixteen of 32 channels at once.

    Adds scale · gradient to one of four cells, two at ``first`` and two at ``second``; ``where`` selects it.
    """

    def codegen(context, builder, _signature, arguments):
        where, gradient, scale, first, second = arguments
        places = _load(builder, where, _PLACES)
        share = builder.fmul(_load(builder, gradient), _load(builder, scale))
        zero = ir.Constant(_VECTOR, [0.0] * LANES)
        neighbour = _number(_ROW)
        cells = [first, builder.add(first, neighbour), second, builder.add(second, neighbour)]
        for k, cell in enumerate(cells):
            here = builder.icmp_signed("==", places, ir.Constant(_PLACES, [k] * LANES))
            total = builder.fadd(_load(builder, cell), builder.select(here, share, zero))
            builder.store(total, _at(builder, cell, _VECTOR), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen

"""The loops that the compiler does not make fast by itself, written in its own language.

Two of them are the join's innermost steps. The squared distance of two rows of bytes: as a plain
loop LLVM widens every byte to 32 bits before it multiplies; told to subtract in 16 bits and to add
neighbouring products, it finds the processor's own multiply-and-add instruction and is four times
as fast. The projected distances of a point to a leaf: told to keep 64 sums in registers and to
turn their comparison into bits, it is seven times as fast (docs/performance.md). The code is
generic LLVM: every processor that numba knows runs it.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

WIDTH = 32  # bytes a step: rows are filled up with zeros to a multiple of it
LEAF = 256  # points a leaf: their codes fit in a second-level cache
AXES = 16  # directions of a projection; constants, so that the compiler unrolls over them
FIRST = 4  # axes that are looked at before the others
LANES = 64  # points whose sums are kept at once, and bits of a word
BYTE, SHORT, INT, LONG, FLOAT = (
    ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
)  # fmt: skip


def _place(
    context: Any, builder: Any, kind: Any, value: Any, index: Sequence[Any], item: Any
) -> Any:
    # A pointer to an element of an array, and the array's shape.
    array = context.make_array(kind)(context, builder, value)
    place = cgutils.get_item_pointer(context, builder, kind, array, index)
    return builder.bitcast(place, item.as_pointer()), cgutils.unpack_tuple(builder, array.shape)


def _load(builder: Any, place: Any, kind: Any) -> Any:
    loaded = builder.load(builder.bitcast(place, kind.as_pointer()))
    loaded.align = 1
    return loaded


def _dist2_of_rows(_context: Any, a: Any, _i: Any, b: Any, _j: Any) -> Any:
    signature = types.int32(a, types.intp, b, types.intp)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        wide, half = ir.VectorType(INT, WIDTH), ir.VectorType(INT, WIDTH // 2)
        kinds, zero = signature.args, ir.Constant(LONG, 0)
        left, shape = _place(context, builder, kinds[0], values[0], [values[1], zero], BYTE)
        right, _ = _place(context, builder, kinds[2], values[2], [values[3], zero], BYTE)
        sums = cgutils.alloca_once_value(builder, ir.Constant(half, None))
        builder.store(ir.Constant(half, None), sums)
        with cgutils.for_range(builder, builder.udiv(shape[1], ir.Constant(LONG, WIDTH))) as loop:
            offset = builder.mul(loop.index, ir.Constant(LONG, WIDTH))
            sides = [
                builder.zext(
                    _load(builder, builder.gep(start, [offset]), ir.VectorType(BYTE, WIDTH)),
                    ir.VectorType(SHORT, WIDTH),
                )
                for start in (left, right)
            ]
            gap = builder.sext(builder.sub(*sides), wide)
            square = builder.mul(gap, gap)
            even, odd = (
                builder.shuffle_vector(
                    square,
                    ir.Constant(wide, ir.Undefined),
                    ir.Constant(half, [INT(n) for n in range(first, WIDTH, 2)]),
                )
                for first in (0, 1)
            )
            builder.store(builder.add(builder.load(sums), builder.add(even, odd)), sums)
        name = f"llvm.vector.reduce.add.v{WIDTH // 2}i32"
        reduce = cgutils.get_or_insert_function(builder.module, ir.FunctionType(INT, [half]), name)
        return builder.call(reduce, [builder.load(sums)])

    return signature, generate


def _dist2_of_rows_plainly(a: np.ndarray, i: Any, b: np.ndarray, j: Any) -> int:
    return int(((a[i].astype(np.int32) - b[j].astype(np.int32)) ** 2).sum())


def _near_bits(
    _context: Any, coords: Any, _leaf: Any, points: Any, _q: Any, limit: Any, bits: Any
) -> Any:
    signature = types.uint64(coords, types.intp, points, types.intp, types.float32, bits)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        # The leaf is axes × 256 floats that follow each other; axes and blocks are unrolled.
        lanes, zero = ir.VectorType(FLOAT, LANES), ir.Constant(LONG, 0)
        kinds = signature.args
        start, _ = _place(context, builder, kinds[0], values[0], [values[1], zero, zero], FLOAT)
        point, _ = _place(context, builder, kinds[2], values[2], [values[3], zero], FLOAT)
        out, _ = _place(context, builder, kinds[5], values[5], [zero], LONG)

        def splat(value: Any) -> Any:
            one = builder.insert_element(
                ir.Constant(lanes, ir.Undefined), value, ir.Constant(INT, 0)
            )
            everywhere = ir.Constant(ir.VectorType(INT, LANES), None)
            return builder.shuffle_vector(one, ir.Constant(lanes, ir.Undefined), everywhere)

        def add(sums: Any, block: int, which: range) -> Any:
            for axis in which:
                place = builder.gep(start, [ir.Constant(LONG, axis * LEAF + block * LANES)])
                here = builder.load(builder.gep(point, [ir.Constant(LONG, axis)]))
                gap = builder.fsub(_load(builder, place, lanes), splat(here))
                # A fused sum is rounded once less: within the margin of the bound.
                square = builder.fmul(gap, gap, flags=("contract",))
                sums = builder.fadd(sums, square, flags=("contract",))
            return sums

        limits = splat(values[4])
        any_near = cgutils.alloca_once_value(builder, zero)
        builder.store(zero, any_near)
        for block in range(LEAF // LANES):
            # The first axes vary most: mostly they tell that none of the block is near.
            sums = add(ir.Constant(lanes, None), block, range(FIRST))
            word = builder.bitcast(builder.fcmp_ordered("<", sums, limits), LONG)
            builder.store(word, builder.gep(out, [ir.Constant(LONG, block)]))
            with builder.if_then(builder.icmp_unsigned("!=", word, zero)):
                sums = add(sums, block, range(FIRST, AXES))
                word = builder.bitcast(builder.fcmp_ordered("<", sums, limits), LONG)
                builder.store(word, builder.gep(out, [ir.Constant(LONG, block)]))
                builder.store(builder.or_(builder.load(any_near), word), any_near)
        return builder.load(any_near)

    return signature, generate


def _near_bits_plainly(
    coords: np.ndarray, leaf: Any, points: np.ndarray, q: Any, limit: Any, bits: np.ndarray
) -> int:
    near = ((coords[leaf] - points[q][:, None]) ** 2).sum(axis=0) < limit
    bits[:] = np.packbits(near, bitorder="little").view(np.uint64)
    return int(np.bitwise_or.reduce(bits))


def _lowest_bit(_context: Any, word: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.cttz(values[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


def _lowest_bit_plainly(word: Any) -> int:
    return (int(word) & -int(word)).bit_length() - 1


def _choose(compiled: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    return plain if cast(Any, numba.config).DISABLE_JIT else intrinsic(compiled)


# Row i of a against row j of b: two C-contiguous tables of bytes whose width WIDTH divides.
dist2_of_rows = _choose(_dist2_of_rows, _dist2_of_rows_plainly)
# Which points of a leaf (16 axes × 256) are nearer to point q than the limit: a bit each, in four
# words; the answer is not 0 if any is.
near_bits = _choose(_near_bits, _near_bits_plainly)
lowest_bit = _choose(_lowest_bit, _lowest_bit_plainly)  # of a word that is not 0

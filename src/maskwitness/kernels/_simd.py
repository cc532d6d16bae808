"""The one loop that the compiler does not make fast by itself, written in its own language.

The squared distance of two rows of bytes is the join's innermost step. As a plain loop LLVM widens
every byte to 32 bits before it multiplies; told to subtract in 16 bits and to add neighbouring
products, it finds the processor's own multiply-and-add instruction and is four times as fast
(docs/performance.md). The code is generic LLVM: every processor that numba knows runs it.
"""

from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

WIDTH = 32  # bytes a step: rows are filled up with zeros to a multiple of it


def _dist2_of_rows(_context: Any, a: Any, _i: Any, b: Any, _j: Any) -> Any:
    signature = types.int32(a, types.intp, b, types.intp)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        byte, word, total = ir.IntType(8), ir.IntType(16), ir.IntType(32)
        wide, half = ir.VectorType(total, WIDTH), ir.VectorType(total, WIDTH // 2)
        starts, length = [], ir.Constant(ir.IntType(64), 0)
        for n in (0, 2):
            kind = signature.args[n]
            array = context.make_array(kind)(context, builder, values[n])
            row = [values[n + 1], ir.Constant(values[n + 1].type, 0)]
            place = cgutils.get_item_pointer(context, builder, kind, array, row)
            starts.append(builder.bitcast(place, byte.as_pointer()))
            length = cgutils.unpack_tuple(builder, array.shape)[1]
        steps = builder.udiv(length, ir.Constant(length.type, WIDTH))
        sums = cgutils.alloca_once_value(builder, ir.Constant(half, None))
        builder.store(ir.Constant(half, None), sums)
        with cgutils.for_range(builder, steps) as loop:
            offset = builder.mul(loop.index, ir.Constant(length.type, WIDTH))
            sides = []
            for start in starts:
                place = builder.gep(start, [offset])
                place = builder.bitcast(place, ir.VectorType(byte, WIDTH).as_pointer())
                loaded = builder.load(place)
                loaded.align = 1
                sides.append(builder.zext(loaded, ir.VectorType(word, WIDTH)))
            gap = builder.sext(builder.sub(*sides), wide)
            square = builder.mul(gap, gap)
            even, odd = (
                builder.shuffle_vector(
                    square,
                    ir.Constant(wide, ir.Undefined),
                    ir.Constant(half, [total(n) for n in range(first, WIDTH, 2)]),
                )
                for first in (0, 1)
            )
            builder.store(builder.add(builder.load(sums), builder.add(even, odd)), sums)
        name = f"llvm.vector.reduce.add.v{WIDTH // 2}i32"
        reduce = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(total, [half]), name
        )
        return builder.call(reduce, [builder.load(sums)])

    return signature, generate


def _dist2_of_rows_plainly(a: np.ndarray, i: Any, b: np.ndarray, j: Any) -> int:
    return int(((a[i].astype(np.int32) - b[j].astype(np.int32)) ** 2).sum())


# Row i of a against row j of b: two C-contiguous tables of bytes whose width WIDTH divides.
dist2_of_rows = cast(
    Callable[[np.ndarray, Any, np.ndarray, Any], Any],
    _dist2_of_rows_plainly if cast(Any, numba.config).DISABLE_JIT else intrinsic(_dist2_of_rows),
)

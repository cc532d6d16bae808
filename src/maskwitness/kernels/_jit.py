"""The one place that compiles.

The tests wrap every function of the package for shape checks; numba cannot compile such a wrapper,
so the decorator unwraps first. ``cache=True`` lets the second process start warm, ``nogil=True``
lets threads work side by side. ``fastmath`` stays off, but for sums whose error is bounded and
that decide nothing: reordered sums would break exactness.
"""

import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile ``function`` to machine code, keeping its signature for the type checker."""
    return cast(Callable[P, R], numba.njit(cache=True, nogil=True)(inspect.unwrap(function)))


def unordered_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a kernel whose sums may be taken in any order: what it returns decides nothing."""
    jit = numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
    return cast(Callable[P, R], jit(inspect.unwrap(function)))


def small_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a helper of other kernels, pasted into each caller."""
    jit = numba.njit(cache=True, nogil=True, inline="always")
    return cast(Callable[P, R], jit(inspect.unwrap(function)))

"""Thinning, depth and cover on a padded box of voxels (Method M1).

A neighbourhood is a word of 27 bits, bit ``9 (di + 1) + 3 (dj + 1) + (dk + 1)``; growing a set by
its neighbours is then a few shifts, and a component is what stops growing. A table over all
neighbourhoods would need 8 MB and seconds to fill; this needs neither and is as fast.

Boxes are flat uint8 arrays in C order with a border of background: 0 background, 1 mask,
2 anchor (mask that must stay). Voxels are named by their flat index.
"""

import numpy as np
from jaxtyping import Int32, Int64, UInt8

from maskwitness.kernels._jit import kernel, small_kernel


def _bits(keep: object) -> int:
    word = 0
    for di in (-1, 0, 1):
        for dj in (-1, 0, 1):
            for dk in (-1, 0, 1):
                if keep(di, dj, dk):  # type: ignore[operator]
                    word |= 1 << (9 * (di + 1) + 3 * (dj + 1) + dk + 1)
    return word


CENTRE = _bits(lambda i, j, k: i == j == k == 0)
FACES = _bits(lambda i, j, k: abs(i) + abs(j) + abs(k) == 1)
FACES_AND_EDGES = _bits(lambda i, j, k: 1 <= abs(i) + abs(j) + abs(k) <= 2)
OFFSET = 1 << 30
NOT_I_LOW, NOT_I_HIGH = _bits(lambda i, j, k: i > -1), _bits(lambda i, j, k: i < 1)
NOT_J_LOW, NOT_J_HIGH = _bits(lambda i, j, k: j > -1), _bits(lambda i, j, k: j < 1)
NOT_K_LOW, NOT_K_HIGH = _bits(lambda i, j, k: k > -1), _bits(lambda i, j, k: k < 1)


@small_kernel
def _grow_26(word: int) -> int:
    word = word | ((word << 1) & NOT_K_LOW) | ((word >> 1) & NOT_K_HIGH)
    word = word | ((word << 3) & NOT_J_LOW) | ((word >> 3) & NOT_J_HIGH)
    return word | ((word << 9) & NOT_I_LOW) | ((word >> 9) & NOT_I_HIGH)


@small_kernel
def _grow_6(word: int) -> int:
    along_k = ((word << 1) & NOT_K_LOW) | ((word >> 1) & NOT_K_HIGH)
    along_j = ((word << 3) & NOT_J_LOW) | ((word >> 3) & NOT_J_HIGH)
    along_i = ((word << 9) & NOT_I_LOW) | ((word >> 9) & NOT_I_HIGH)
    return word | along_k | along_j | along_i


@kernel
def background_touches(word: int) -> int:
    """Count the 6-components of the background around a voxel that touch it by a face."""
    background = ~word & FACES_AND_EDGES
    open_faces = background & FACES
    found = 0
    while open_faces:
        found += 1
        part = open_faces & -open_faces
        while True:
            grown = _grow_6(part) & background
            if grown == part:
                break
            part = grown
        open_faces &= ~part
    return found


@kernel
def is_simple(word: int) -> bool:
    """Say whether removing the voxel leaves topology alone: 26-foreground, 6-background."""
    if word == 0:
        return False
    part = word & -word
    while True:
        grown = _grow_26(part) & word
        if grown == part:
            break
        part = grown
    return part == word and background_touches(word) == 1


@kernel
def neighbourhood(box: UInt8[np.ndarray, " voxels"], at: int, rows: int, planes: int) -> int:
    """Return the foreground around a voxel as 27 bits, the voxel itself left out."""
    word = 0
    bit = 0
    for di in range(-1, 2):
        for dj in range(-1, 2):
            row = at + di * planes + dj * rows
            word |= (
                int(box[row - 1] != 0) << bit
                | int(box[row] != 0) << (bit + 1)
                | int(box[row + 1] != 0) << (bit + 2)
            )
            bit += 3
    return word & ~CENTRE


@kernel
def count_bits(word: int) -> int:
    """Return the number of set bits."""
    found = 0
    while word:
        word &= word - 1
        found += 1
    return found


@kernel
def _collect(
    box: UInt8[np.ndarray, " voxels"],
    live: Int64[np.ndarray, " live"],
    step: int,
    shape: tuple[int, int],
    candidates: Int64[np.ndarray, " live"],
) -> int:
    # Candidates of one pass, most neighbours first: a counting sort over 0 … 26 that keeps the
    # order of the indices within each count.
    rows, planes = shape
    crowd = np.empty(len(live), np.uint8)
    starts = np.zeros(28, np.int64)
    for n in range(len(live)):
        crowd[n] = 0
        at = live[n]
        if box[at] != 1 or box[at + step] != 0:
            continue
        word = neighbourhood(box, at, rows, planes)
        neighbours = count_bits(word)
        if neighbours >= 2 and is_simple(word):
            crowd[n] = neighbours
            starts[neighbours] += 1
    total = 0
    for neighbours in range(26, -1, -1):
        starts[neighbours], total = total, total + starts[neighbours]
    for n in range(len(live)):
        if crowd[n]:
            candidates[starts[crowd[n]]] = live[n]
            starts[crowd[n]] += 1
    return total


@kernel
def thin_box(
    box: UInt8[np.ndarray, " voxels"], live: Int64[np.ndarray, " live"], rows: int, planes: int
) -> Int64[np.ndarray, " skeleton"]:
    """Delete simple voxels that are no ends, pass by pass; return those that stay.

    ``live`` holds the foreground in rising order. ``rows`` and ``planes`` are the flat steps along
    j and i. The box is changed in place.
    """
    steps = (-planes, planes, -rows, rows, -1, 1)
    candidates = np.empty_like(live)
    live = live.copy()  # the caller's list stays whole
    idle = 0
    turn = 0
    while idle < 6:
        total = _collect(box, live, steps[turn], (rows, planes), candidates)
        deleted = 0
        for n in range(total):
            at = candidates[n]
            word = neighbourhood(box, at, rows, planes)
            # Both questions again: as others go, a voxel may have become the end of a curve.
            if word & (word - 1) and is_simple(word):
                box[at] = 0
                deleted += 1
        if deleted:
            left = 0
            for n in range(len(live)):
                if box[live[n]]:
                    live[left] = live[n]
                    left += 1
            live = live[:left]
        idle = 0 if deleted else idle + 1
        turn = (turn + 1) % 6
    return live.copy()


@kernel
def cavities_of(
    skeleton: UInt8[np.ndarray, "i j k"],
    points: Int64[np.ndarray, " points"],
    region: UInt8[np.ndarray, " voxels"],
) -> tuple[Int64[np.ndarray, " found"], Int64[np.ndarray, " found"]]:
    """Return the voxels of all cavities that a skeleton closes, and the number of each one's.

    A skeleton voxel that parts two regions of background may be part of a closed sheet. From each
    of its open faces the background is searched, depth first and so straight ahead, until the
    border of the box is reached or nothing is left: then it was a cavity. ``region`` arrives as
    zeros and remembers what is known to be outside (1) and what is a cavity (2).
    """
    size_i, size_j, size_k = skeleton.shape
    flat = skeleton.reshape(-1)
    rows, planes = size_k, size_j * size_k
    seen = np.empty(flat.size, np.int64)
    stack = np.empty(flat.size, np.int64)
    first = total = cavities = 0
    number = np.zeros(flat.size, np.int64)
    for point in points:
        if background_touches(neighbourhood(flat, point, rows, planes)) < 2:
            continue
        for face in (-planes, planes, -rows, rows, -1, 1):
            if flat[point + face] or region[point + face]:
                continue
            stack[0] = seen[first] = point + face
            region[point + face] = 2
            top, total = 1, first + 1
            outside = False
            while top and not outside:
                top -= 1
                at = stack[top]
                i, j, k = at // planes, at // rows % size_j, at % rows
                if min(i, j, k, size_i - 1 - i, size_j - 1 - j, size_k - 1 - k) == 0:
                    outside = True
                    continue
                for step in (-planes, planes, -rows, rows, -1, 1):
                    if flat[at + step]:
                        continue
                    if region[at + step] == 1:
                        outside = True
                    elif region[at + step] == 0:
                        region[at + step] = 2
                        stack[top] = seen[total] = at + step
                        top += 1
                        total += 1
            if outside:
                region[seen[first:total]] = 1
            else:
                number[first:total] = cavities
                cavities += 1
                first = total
    return seen[:first].copy(), number[:first].copy()


@kernel
def depth_into(
    box: UInt8[np.ndarray, " voxels"],
    mask: Int64[np.ndarray, " n"],
    rows: int,
    planes: int,
    depth: Int32[np.ndarray, " voxels"],
) -> None:
    """Write the city-block distance to the background of each mask voxel: 1 at the surface."""
    steps = (-planes, planes, -rows, rows, -1, 1)
    queue = np.empty(len(mask), np.int64)
    tail = 0
    for at in mask:
        for step in steps:
            if box[at + step] == 0:
                depth[at] = 1
                queue[tail] = at
                tail += 1
                break
    head = 0
    while head < tail:
        at = queue[head]
        head += 1
        for step in steps:
            if box[at + step] and depth[at + step] == 0:
                depth[at + step] = depth[at] + 1
                queue[tail] = at + step
                tail += 1


@kernel
def slack_into(
    box: UInt8[np.ndarray, " voxels"],
    seeds: Int64[np.ndarray, " skeleton"],
    seed_slack: Int32[np.ndarray, " skeleton"],
    rows: int,
    planes: int,
    slack: Int32[np.ndarray, " voxels"],
    voxels: int,
) -> Int64[np.ndarray, " reached"]:
    """Write the slack of every mask voxel, the skeleton's own less one for each step away from it.

    ``seeds`` come by falling slack; ``slack`` arrives as zeros and is written with an offset that
    keeps 0 for "not yet"; ``voxels`` is the size of the mask. Voxels are returned by falling slack.
    Level by level: what the level above pushed, and the seeds that enter here, have the same slack.
    """
    queue = np.empty(voxels, np.int64)
    head = tail = taken = 0
    level = seed_slack[0]
    while True:
        while taken < len(seeds) and seed_slack[taken] == level:
            if slack[seeds[taken]] == 0:
                slack[seeds[taken]] = level + OFFSET
                queue[tail] = seeds[taken]
                tail += 1
            taken += 1
        end = tail
        for n in range(head, end):
            for di in (-planes, 0, planes):
                for dj in (-rows, 0, rows):
                    for at in range(queue[n] + di + dj - 1, queue[n] + di + dj + 2):
                        if box[at] and slack[at] == 0:
                            slack[at] = level - 1 + OFFSET
                            queue[tail] = at
                            tail += 1
        head = end
        if head < tail:
            level -= 1
        elif taken < len(seeds):
            level = seed_slack[taken]
        else:
            return queue[:tail]

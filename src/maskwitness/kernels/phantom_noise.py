"""Inner loops of the phantom's scanner: coloured noise and smooth random fields.

Strategy: white noise becomes CT-like by a short symmetric filter along each axis; each line is
copied to a small buffer, filtered and written back, so no second volume is held.
"""

import math

import numpy as np
from jaxtyping import Float32, Float64, Int16

from maskwitness.kernels._jit import kernel


@kernel
def colour_into(
    noise: Float32[np.ndarray, "i j k"], taps: Float32[np.ndarray, " taps"], axis: int
) -> None:
    """Filter along one axis by a symmetric filter; ``taps[0]`` is its middle. Ends wrap round."""
    size_i, size_j, size_k = noise.shape
    half = taps.shape[0] - 1
    # i is the fast axis: along j and k a whole row of i is filtered at once
    if axis == 0:
        line = np.zeros(size_i, dtype=np.float32)
        for k in range(size_k):
            for j in range(size_j):
                for i in range(size_i):
                    line[i] = noise[i, j, k]
                for i in range(half):
                    noise[i, j, k] = filtered(line, taps, i)
                    noise[size_i - 1 - i, j, k] = filtered(line, taps, size_i - 1 - i)
                for i in range(half, size_i - half):
                    total = taps[0] * line[i]
                    for t in range(1, half + 1):
                        total += taps[t] * (line[i - t] + line[i + t])
                    noise[i, j, k] = total
        return
    length = size_j if axis == 1 else size_k
    others = size_k if axis == 1 else size_j
    sheet = np.zeros((length, size_i), dtype=np.float32)
    for other in range(others):
        for n in range(length):
            for i in range(size_i):
                sheet[n, i] = noise[i, n, other] if axis == 1 else noise[i, other, n]
        for n in range(length):
            j = n if axis == 1 else other
            k = other if axis == 1 else n
            for i in range(size_i):
                noise[i, j, k] = taps[0] * sheet[n, i]
            for t in range(1, half + 1):
                before = (n - t) % length
                after = (n + t) % length
                for i in range(size_i):
                    noise[i, j, k] += taps[t] * (sheet[before, i] + sheet[after, i])


@kernel
def filtered(
    line: Float32[np.ndarray, " length"], taps: Float32[np.ndarray, " taps"], at: int
) -> float:
    """Return one filtered sample of a line whose ends are joined."""
    total = taps[0] * line[at]
    for t in range(1, taps.shape[0]):
        total += taps[t] * (line[(at - t) % line.shape[0]] + line[(at + t) % line.shape[0]])
    return total


@kernel
def expose_into(
    out: Int16[np.ndarray, "i j k"],
    volume: Float32[np.ndarray, "i j k"],
    noise: Float32[np.ndarray, "i j k"],
    texture: Float32[np.ndarray, "a b c"],
    texture_vox: int,
    noise_hu: float,
) -> None:
    """Write whole HU: tissue + its coarse texture + noise. Air and lung carry no texture."""
    for k in range(out.shape[2]):
        c = k // texture_vox
        fc = np.float32((k - c * texture_vox) / texture_vox)
        for j in range(out.shape[1]):
            b = j // texture_vox
            fb = np.float32((j - b * texture_vox) / texture_vox)
            for i in range(out.shape[0]):
                a = i // texture_vox
                fa = np.float32((i - a * texture_vox) / texture_vox)
                low = 0.0
                high = 0.0
                for m in range(2):
                    near = texture[a, b + m, c] + fa * (
                        texture[a + 1, b + m, c] - texture[a, b + m, c]
                    )
                    far = texture[a, b + m, c + 1] + fa * (
                        texture[a + 1, b + m, c + 1] - texture[a, b + m, c + 1]
                    )
                    mixed = near + fc * (far - near)
                    if m == 0:
                        low = mixed
                    else:
                        high = mixed
                value = volume[i, j, k]
                value += noise_hu * noise[i, j, k]
                if volume[i, j, k] > -200.0:
                    value += low + fb * (high - low)
                out[i, j, k] = np.int16(min(3071.0, max(-1024.0, math.floor(value + 0.5))))


@kernel
def sample_into(
    values: Float64[np.ndarray, " voxels"],
    at: Float64[np.ndarray, "voxels 3"],
    field: Float64[np.ndarray, "a b c"],
) -> None:
    """Fill trilinear samples of a smooth field; ``at`` in the field's own indices, inside it."""
    for n in range(values.shape[0]):
        a = int(at[n, 0])
        b = int(at[n, 1])
        c = int(at[n, 2])
        fa = at[n, 0] - a
        fb = at[n, 1] - b
        fc = at[n, 2] - c
        total = 0.0
        for p in range(2):
            for q in range(2):
                for r in range(2):
                    share = (fa if p else 1 - fa) * (fb if q else 1 - fb) * (fc if r else 1 - fc)
                    total += share * field[a + p, b + q, c + r]
        values[n] = total

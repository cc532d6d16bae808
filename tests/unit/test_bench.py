"""Benchmarks: they measure what they say, beside a peer that finds the same."""

import numpy as np

from maskwitness import screen
from maskwitness.bench import scan as bench
from maskwitness.centreline import trace_graph
from maskwitness.config import PatchSettings
from maskwitness.frames import transport_frames
from maskwitness.io.datasets import find_cases
from maskwitness.io.volumes import read_scan, write_volume
from maskwitness.patches import circle, sample_patches
from tests.shapes import ONE, tube


def test_thinning_is_measured_beside_its_peer(tmp_path, capsys):
    mask = tube(3.0, (8, 8, 4), (8, 8, 36), (17, 17, 41))
    write_volume(tmp_path / "tube.nii.gz", mask, ONE)
    result = bench.bench_thinning(1, tmp_path / "tube.nii.gz")
    assert f"{np.count_nonzero(mask):,} of them mask" in result["title"]
    thinning = result["rows"][0]
    assert thinning["step"] == "thinning"
    assert thinning["ours_s"] > 0
    assert thinning["peer_s"] > 0
    screen.show_bench(result)
    assert "scikit-image" in " ".join(capsys.readouterr().out.split())


def test_the_peer_cuts_the_same_patches(phantom_data):
    scan = read_scan(find_cases(phantom_data).cases[0])
    graph = trace_graph(scan.mask, scan.affine)
    frames = transport_frames(graph, scan.affine)
    settings = PatchSettings()
    ours = sample_patches(scan, graph, frames, settings)
    _, masks = bench._map_coordinates(scan, graph, frames, settings)
    theirs = (masks.reshape(ours.image.shape) != 0) & circle(settings.size)
    bits = np.unpackbits(ours.mask, axis=1, count=settings.size**2).reshape(theirs.shape)
    assert np.mean(bits.astype(bool) == theirs) > 0.9999  # ties at half a voxel go either way

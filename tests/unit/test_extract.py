"""What tells that a scan's files have changed: a stamp to look at, a digest to be sure."""

import os

import pytest

from maskwitness.run.extract import digest_if_readable, stamp_of


@pytest.mark.parametrize(
    ("header", "voxels", "text"),
    [
        ("a.mhd", "a.raw", "NDims = 3\nElementDataFile = a.raw\n"),
        ("a.nhdr", "a.raw", "NRRD0004\nencoding: raw\ndata file: a.raw\n"),
        ("a.hdr", "a.img", "header"),
        ("a.img", "a.hdr", "voxels"),
    ],
)
def test_the_stamp_sees_voxels_that_lie_in_another_file(tmp_path, header, voxels, text):
    (tmp_path / header).write_text(text)
    (tmp_path / voxels).write_bytes(b"one")
    before = stamp_of(tmp_path / header)
    assert stamp_of(tmp_path / header) == before
    (tmp_path / voxels).write_bytes(b"three")
    assert stamp_of(tmp_path / header) != before


def test_the_stamp_sees_an_older_file_of_the_same_size(tmp_path):
    for name in ("1.dcm", "2.dcm"):
        (tmp_path / name).write_bytes(b"one")
        os.utime(tmp_path / name, (2_000, 2_000))
    before = stamp_of(tmp_path)
    (tmp_path / "1.dcm").write_bytes(b"two")
    os.utime(tmp_path / "1.dcm", (1_000, 1_000))
    assert stamp_of(tmp_path) != before


def test_a_file_that_is_not_there_has_a_stamp_and_no_digest(tmp_path):
    assert stamp_of(tmp_path / "no.nii.gz") == "missing"
    assert digest_if_readable(tmp_path / "no.nii.gz") is None

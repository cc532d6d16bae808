"""Small files: whole or not at all."""

import pytest

from maskwitness.io import files


def test_a_file_is_replaced_as_a_whole(tmp_path):
    place = tmp_path / "run.json"
    for content in (b"one", b"two and more", b""):
        files.write_whole(place, content)
        assert place.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    def full(_: int) -> None:
        message = "no space left on device"
        raise OSError(message)

    files.write_whole(tmp_path / "run.json", b"old")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        files.write_whole(tmp_path / "run.json", b"new")
    assert (tmp_path / "run.json").read_bytes() == b"old"

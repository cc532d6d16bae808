# mypy: allow-untyped-calls
from pathlib import Path

import pytest

from maskwitness.io.naming import derive_names, natural_order, safe_name, unique_names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("case_1", "case_1"),
        ("Fälle 7", "Fälle 7"),
        ("a/b", "a_b"),
        ("..\\..\\etc", "_.._etc"),
        ("../../etc", "_.._etc"),
        ("tab\there", "tab_here"),
        ("..", "scan"),
        ("", "scan"),
        ("  . ", "scan"),
        ("what?", "what_"),
    ],
)
def test_a_name_becomes_one_that_a_file_can_have(text, expected):
    assert safe_name(text) == expected


def test_a_long_name_is_cut():
    assert len(safe_name("ä" * 500).encode()) <= 180


def test_names_that_become_alike_are_told_apart():
    assert list(unique_names(["a/b", "a:b", "A_B", "a_b-2"])) == [
        "a_b",
        "a_b-2",
        "A_B-3",
        "a_b-2-2",
    ]


def test_images_are_named_after_their_files():
    images = [Path("/d/case_1_0000.nii.gz"), Path("/d/case_2_0000.nii.gz")]
    assert derive_names(images) == ["case_1", "case_2"]
    assert derive_names([Path("/d/1.img.nii.gz")]) == ["1"]
    assert derive_names([Path("/d/x_0000.nii.gz"), Path("/d/x_0001.nii.gz")]) == [
        "x_0000",
        "x_0001",
    ]


def test_folders_tell_images_of_the_same_name_apart():
    images = [Path("/d/a/1/ct.nii.gz"), Path("/d/b/1/ct.nii.gz"), Path("/d/b/2/ct.nii.gz")]
    assert derive_names(images) == ["a_1_ct", "b_1_ct", "b_2_ct"]


def test_the_same_file_twice_keeps_the_same_name():
    assert len(set(derive_names([Path("/d/../a.nii"), Path("/d/../a.nii")]))) == 1


def test_two_comes_before_ten():
    names = ["case10", "case2", "Case1", "b", "case02"]
    assert sorted(names, key=natural_order) == ["b", "Case1", "case02", "case2", "case10"]

"""The contest of the join: fair patches, peers that find the same, rows that say what happened."""

import dataclasses
import json
from importlib.util import find_spec
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maskwitness.bench import command, measure, tables
from maskwitness.bench import join as contests
from maskwitness.bench import patches as banks
from maskwitness.bench.peers import CONTENDERS, Found, Question, vectors
from maskwitness.config import JoinSettings
from maskwitness.errors import ConfigError, InputError
from maskwitness.join import ANY_DISTANCE, dist2_limit, range_pairs, tree
from maskwitness.patches import circle
from maskwitness.records import Bank

LIMIT = dist2_limit(0.01, 24)
NEAR = Question(0.01, LIMIT, 2047, "any", 2, "cpu")


@pytest.fixture(scope="module")
def pool() -> Bank:
    bank, note = banks.phantom_bank(1500, 10, 3, workers=1)
    assert "phantom scans, size small, seed 3" in note
    return bank


@pytest.fixture(scope="module")
def hard() -> Bank:
    return banks.hard_bank(1200, 0.001, 5)[0]


def some_found(*pairs: tuple[int, int, int]) -> Found:
    row, witness, dist2 = np.array(pairs).T
    return Found(row, witness, dist2)


def assert_equal_banks(one: Bank, other: Bank) -> None:
    for name in measure.ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


class TestPatches:
    def test_come_from_scans_in_order_and_have_an_image(self, pool):
        assert len(pool.image) == 1500
        assert pool.has_image.all()
        assert list(np.unique(pool.group)) == list(range(pool.group.max() + 1))
        assert (np.diff(pool.group) >= 0).all()
        fewer, _ = banks.phantom_bank(600, 10, 3, workers=1)
        assert_equal_banks(fewer, banks.some(pool, slice(600)))

    def test_of_too_few_scans_are_turned_and_mirrored(self, pool):
        few = banks.some(pool, slice(10))
        every = banks.filled_up(few, 80)
        assert len({image.tobytes() for image in every.image}) == 80
        assert len(np.unique(every.group)) == 8
        np.testing.assert_array_equal(every.image[70], np.rot90(few.image[0], 3)[:, ::-1])
        bits = np.unpackbits(every.mask, axis=1).reshape(-1, 24, 24)
        np.testing.assert_array_equal(bits[70], np.rot90(bits[0], 3)[:, ::-1])
        with pytest.raises(ConfigError, match="81 patches are more than 8 views of 10"):
            banks.filled_up(few, 81)

    def test_are_shifted_to_nine_places_side_by_side(self, pool):
        nine = banks.shifted(pool)
        assert len(nine.image) == 9 * len(pool.image)
        assert (np.diff(nine.group) >= 0).all()
        assert not nine.image[:, ~circle(24)].any()
        first = np.flatnonzero(pool.group == 0)
        # The fifth of nine is not shifted.
        start = 4 * len(first)
        np.testing.assert_array_equal(nine.image[start : start + len(first)], pool.image[first])
        left = np.roll(pool.image[0], (-1, -1), axis=(0, 1)) * circle(24)
        np.testing.assert_array_equal(nine.image[0], left)

    def test_of_noise_are_hard(self, hard):
        grown = tree.grow(hard, tree.Memory(2**30))
        asked = grown.ask(hard, np.arange(len(hard.image)), own=True)
        coords = asked.points.astype(np.float64)
        near = ((coords[:, None] - coords[None]) ** 2).sum(axis=2) < dist2_limit(0.001, 24)
        assert near.mean() > 0.9
        pairs = sum(len(block.witness) for block in range_pairs(hard, JoinSettings()))
        assert 0.2 < pairs / (banks.WITNESSES * 1200**2) < 5
        with pytest.raises(ConfigError, match="does not fit into 8 bits"):
            banks.hard_bank(10, 0.5, 5)

    def test_are_whole_numbers_that_peers_add_up_exactly(self, pool):
        points = vectors(pool)
        assert points.dtype == np.float32
        assert points.shape == (1500, 448)
        assert (points**2).sum(axis=1).max() < 2**24


class TestPeers:
    @pytest.mark.parametrize("name", [n for n in CONTENDERS if not n.endswith("nearest")])
    @pytest.mark.parametrize("k", [2047, 3])
    def test_find_the_same_witnesses(self, pool, hard, name, k):
        contender = CONTENDERS[name]
        if contender.package:
            pytest.importorskip(contender.package)
        for bank, question in ((pool, NEAR), (hard, NEAR._replace(epsilon=0.001, limit=37455))):
            asked = question._replace(k=k)
            ours = measure.digest_of(CONTENDERS["ours"].search(bank, None, asked), k)
            assert ours[0] > 50
            assert measure.digest_of(contender.search(bank, None, asked), k) == ours

    @pytest.mark.parametrize("name", ["faiss-nearest", "torch-nearest"])
    @pytest.mark.parametrize("patches", [300, 1500])  # 300: all of one scan: nobody may testify
    def test_find_the_same_nearest_of_other_scans(self, pool, name, patches):
        contender = CONTENDERS[name]
        pytest.importorskip(contender.package)
        queries = banks.some(pool, slice(patches))
        bank = banks.shifted(queries)
        question = Question(0.001, ANY_DISTANCE, 8, "other_scan", 2, "cpu")
        ours = measure.digest_of(CONTENDERS["ours-nearest"].search(bank, queries, question), 8)
        assert ours[0] == (0 if patches == 300 else 8 * 1500)
        assert measure.digest_of(contender.search(bank, queries, question), 8) == ours


class TestDigest:
    def test_does_not_depend_on_the_order_of_the_pairs(self):
        one = some_found((0, 1, 5), (0, 2, 3), (1, 0, 5))
        other = some_found((1, 0, 5), (0, 2, 3), (0, 1, 5))
        assert measure.digest_of(one, 3) == measure.digest_of(other, 3)
        third = some_found((1, 0, 5), (0, 2, 3), (0, 3, 5))
        assert measure.digest_of(one, 3) != measure.digest_of(third, 3)

    def test_cuts_rows_to_the_nearest_and_leaves_ties_open(self):
        every = some_found((0, 1, 5), (0, 2, 3), (0, 3, 5), (1, 0, 5))
        one, other = (
            some_found((0, 2, 3), (0, 1, 5), (1, 0, 5)),
            some_found((0, 2, 3), (0, 3, 5), (1, 0, 5)),
        )
        assert measure.digest_of(every, 2)[0] == 3
        assert measure.digest_of(every, 2) == measure.digest_of(one, 2)
        assert measure.digest_of(one, 2) == measure.digest_of(other, 2)


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    said: list[str] = []
    contest = contests.Contest(sizes=(300, 600), hard=300, threads=1, limits={"sklearn": 300})
    result = contests.bench_join(contest, said.append)
    assert "maskwitness: phantom, 300 patches" in said
    return result


class TestContest:
    def test_has_a_row_for_every_contender_at_every_size(self, result):
        assert len(result["rows"]) == 3 * 4
        for row in result["rows"]:
            if "skipped" in row:
                assert "is not installed" in row["skipped"] or row["contender"] == "sklearn"
            else:
                assert row["same"]
                assert row["seconds"] > 0
                assert row["peak_mib"] is None or row["peak_mib"] >= 0
        assert result["growth"].keys() >= {"ours"}
        assert "sklearn" not in result["growth"]
        assert json.loads(json.dumps(result)) == result

    def test_is_shown_and_written(self, result, tmp_path, capsys):
        tables.show_contest(result)
        shown = " ".join(capsys.readouterr().out.split())
        assert "maskwitness" in shown
        assert "at most 2047 a patch; 1 thread" in shown
        note = tables.write_contest(tmp_path, result)
        assert json.loads((tmp_path / "join.json").read_text(encoding="utf-8")) == result
        drawn = find_spec("matplotlib") is not None
        assert (tmp_path / "join.svg").exists() == drawn
        assert (tmp_path / "join.png").exists() == drawn
        assert str(tmp_path) in note
        with pytest.raises(InputError, match="not an empty folder"):
            tables.free_folder(tmp_path)

    def test_goes_on_where_a_contender_fails(self, tmp_path, hard):
        measure.save_bank(hard, tmp_path / "bank")
        job = measure.Job(
            contender="ours", bank=str(tmp_path / "bank"), queries="",
            question=NEAR._replace(k=-1, threads=1, epsilon=float("nan")), repeats=1,
        )  # fmt: skip
        outcome = contests._outcome(job, 10, None)
        assert outcome["skipped"].startswith("failed: ")
        assert "Error" in outcome["skipped"]

    def test_measures_how_times_grow(self):
        rows = [
            {"kind": "phantom", "contender": "ours", "patches": n, "seconds": 1e-6 * n**1.5}
            for n in (1000, 2000, 4000)
        ]
        rows += [{"kind": "hard", "contender": "ours", "patches": 10, "seconds": 9.0}]
        rows += [{"kind": "phantom", "contender": "one", "patches": 10, "seconds": log(2)}]
        assert contests.growth(rows) == pytest.approx({"ours": 1.5})

    def test_refuses_numbers_that_do_not_fit(self):
        for values, words in (
            ({"epsilon": 0.0}, "between 0 and 1"),
            ({"sizes": (1,)}, "at least two"),
            ({"hard": 1}, "at least two"),
        ):
            with pytest.raises(ConfigError, match=words):
                dataclasses.replace(contests.Contest(), **values)


def test_a_bank_comes_back_from_its_folder(hard: Bank, tmp_path: Path):
    measure.save_bank(hard, tmp_path / "bank")
    assert_equal_banks(measure.load_bank(tmp_path / "bank"), hard)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"patches": "12,a"}, "numbers of patches are whole numbers"),
        ({"patches": "-5"}, "numbers of patches are whole numbers"),
        ({"patches": "1"}, "at least two"),
        ({"device": "tpu"}, "it must be cpu or cuda"),
        ({"epsilon": 2.0}, "between 0 and 1"),
        ({"epsilon": 0.5}, "does not fit into 8 bits"),
        ({"peer_limit": "faiss=3"}, "there is no 'faiss'"),
        ({"peer_limit": "sklearn=x"}, "whole numbers"),
        ({"patches": "90000", "scans": 1, "hard": 0}, "make more scans: --scans"),
    ],
)
def test_a_mistake_is_refused_before_anything_is_measured(options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        command.join(**options)


def test_a_folder_that_holds_anything_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="not an empty folder"):
        command.nearest(output=tmp_path)


def test_limits_are_for_all_peers_or_for_one():
    assert command._limits("7", ("a", "b")) == {"a": 7, "b": 7}
    assert command._limits("a=7,b=9", ("a", "b")) == {"a": 7, "b": 9}
    assert command._limits(None, ("a", "b")) == {}

import dataclasses
import os
from typing import Any

import pytest

from maskwitness import config
from maskwitness.config import (
    PRESETS,
    Config,
    JoinSettings,
    as_dict,
    check,
    differences,
    digest_of,
    from_dict,
    from_toml,
    preset,
    with_settings,
)
from maskwitness.errors import ConfigError

OTHER: dict[str, Any] = {  # for every setting another value that is allowed
    "data.labels": [1, 7],
    "patches.extent_mm": 6.0,
    "patches.size": 32,
    "join.epsilon": 0.002,
    "join.k": 0,
    "join.testify": "other_scan",
    "join.stretch_mm": 7.5,
    "join.memory_mb": 512,
    "residuals.bins": 50,
    "residuals.min_pairs": 10,
    "quality.reach_mm": 2.5,
    "findings.threshold": -2.0,
    "findings.worst_share": 0.1,
    "findings.bridge_mm": 1.0,
}


def every_setting() -> list[str]:
    return [
        f"{step}.{key}"
        for step, settings in as_dict(Config()).items()
        if isinstance(settings, dict)
        for key in settings
    ]


def changed(path: str, value: Any) -> Config:
    step, key = path.split(".")
    return from_dict({step: {key: value}})


def assert_refused(tables: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_dict(tables)
    assert words in str(caught.value)


class TestPaper:
    def test_is_what_the_paper_says(self):
        paper = preset("paper")
        assert paper == Config()
        assert (paper.patches.extent_mm, paper.patches.size) == (3.0, 24)
        assert (paper.join.epsilon, paper.join.k, paper.join.testify) == (1e-3, 2047, "any")
        assert paper.residuals.bins == 100
        assert paper.patches.step_mm == 0.125

    def test_a_preset_that_does_not_exist_is_refused(self):
        with pytest.raises(ConfigError, match="there is no preset 'papers'; there is paper"):
            preset("papers")
        assert_refused({"preset": "papers"}, "there is no preset 'papers'")
        assert_refused({"preset": 3}, "preset must be a name, not 3")

    def test_every_preset_is_valid(self):
        for settings in PRESETS.values():
            check(settings)

    def test_a_preset_in_the_tables_replaces_the_base(self):
        base = changed("join.k", 5)
        assert from_dict({}, base) == base
        assert from_dict({"preset": "paper"}, base) == Config()
        assert from_dict({"join": {"epsilon": 0.5}}, base).join == JoinSettings(k=5, epsilon=0.5)

    def test_nothing_is_read_from_the_environment(self, monkeypatch):
        for name in ("MASKWITNESS_JOIN_K", "JOIN_K", "K"):
            monkeypatch.setitem(os.environ, name, "1")
        assert from_dict({}) == Config()


class TestUnknownKeys:
    @pytest.mark.parametrize(
        ("tables", "words"),
        [
            (
                {"patches": {"sizes": 1}},
                "patches.sizes is not a setting; did you mean 'patches.size'?",
            ),
            ({"join": {"neighbours": 1}}, "join.neighbours is not a setting"),
            ({"patch": {}}, "patch is not a setting; did you mean 'patches'?"),
            ({"xyz": 1}, "xyz is not a setting; there is data, patches, join, residuals, quality"),
            ({"patches": 3}, "patches is a table of settings, not 3"),
        ],
    )
    def test_are_refused_with_the_nearest(self, tables, words):
        assert_refused(tables, words)

    def test_on_the_command_line_too(self):
        for text, words in (
            ("patches.extent=3", "did you mean 'patches.extent_mm'?"),
            ("patch.size=3", "did you mean 'patches.size'?"),
            ("size=3", "'size=3' is not a setting; write it as patches.extent_mm=6"),
            ("patches.size", "'patches.size' is not a setting; write it as"),
        ):
            with pytest.raises(ConfigError) as caught:
                with_settings(Config(), [text])
            assert words in str(caught.value)


class TestTypes:
    @pytest.mark.parametrize(
        ("path", "value", "words"),
        [
            ("patches.size", 24.0, "patches.size = 24.0: it must be a whole number"),
            ("patches.size", True, "it must be a whole number"),
            ("patches.size", "24", "it must be a whole number"),
            ("patches.extent_mm", "3", "it must be a finite number"),
            ("patches.extent_mm", True, "it must be a finite number"),
            ("patches.extent_mm", float("nan"), "it must be a finite number"),
            ("patches.extent_mm", float("inf"), "it must be a finite number"),
            ("patches.extent_mm", 10**400, "it must be a finite number"),
            ("join.testify", "all", "it must be any, other_stretch or other_scan"),
            ("join.testify", 1, "it must be any, other_stretch or other_scan"),
            ("data.labels", [1, "2"], "it must be a list of whole numbers"),
            ("data.labels", [1.0], "it must be a list of whole numbers"),
            ("data.labels", [True], "it must be a list of whole numbers"),
        ],
    )
    def test_that_do_not_fit_are_refused(self, path, value, words):
        step, key = path.split(".")
        assert_refused({step: {key: value}}, words)

    def test_a_whole_number_is_a_number(self):
        found = changed("patches.extent_mm", 6).patches.extent_mm
        assert (found, type(found)) == (6.0, float)
        assert (
            changed("patches.extent_mm", 6).digest() == changed("patches.extent_mm", 6.0).digest()
        )

    def test_one_label_is_a_list_of_one(self):
        assert changed("data.labels", 3).data.labels == (3,)
        assert changed("data.labels", [3, 4]).data.labels == (3, 4)


class TestRules:
    @pytest.mark.parametrize(
        ("path", "values"),
        [
            ("patches.extent_mm", [0, -1.0]),
            ("patches.size", [3, 129]),
            ("join.epsilon", [0, -0.1, 1.001]),
            ("join.k", [-1]),
            ("join.stretch_mm", [-0.1]),
            ("join.memory_mb", [63]),
            ("residuals.bins", [0, 100_001]),
            ("residuals.min_pairs", [1]),
            ("quality.reach_mm", [0, -1]),
            ("findings.worst_share", [-0.01, 1.01]),
            ("findings.bridge_mm", [-1]),
        ],
    )
    def test_refuse_what_no_step_could_work_with(self, path, values):
        for value in values:
            with pytest.raises(ConfigError, match=path):
                changed(path, value)
            with pytest.raises(ConfigError, match=path):
                with_settings(Config(), [f"{path}={value}"])

    @pytest.mark.parametrize(
        ("path", "values"),
        [
            ("patches.size", [4, 128]),
            ("join.epsilon", [1e-9, 1]),
            ("join.k", [0]),
            ("join.stretch_mm", [0]),
            ("join.memory_mb", [64]),
            ("residuals.bins", [1, 100_000]),
            ("residuals.min_pairs", [2]),
            ("findings.worst_share", [0, 1]),
            ("findings.bridge_mm", [0]),
        ],
    )
    def test_allow_their_limits(self, path, values):
        step, key = path.split(".")
        for value in values:
            assert getattr(getattr(changed(path, value), step), key) == value


class TestToml:
    def test_is_read_like_tables(self):
        text = '[join]\nk = 0\ntestify = "other_scan"\n[data]\nlabels = [1, 2]\n'
        found = from_toml(text)
        assert found.join == JoinSettings(k=0, testify="other_scan")
        assert found.data.labels == (1, 2)
        assert from_toml("", found) == found

    def test_that_is_none_is_refused(self):
        with pytest.raises(ConfigError, match="not a TOML file"):
            from_toml("[join\nk=0")

    def test_comes_back_as_it_went_out(self):
        for path, value in OTHER.items():
            one = changed(path, value)
            assert from_dict(as_dict(one)) == one


class TestAssignments:
    def test_are_written_as_in_toml(self):
        found = with_settings(
            Config(),
            ["join.k=0", "join.epsilon = 2e-3", 'join.testify="other_scan"', "data.labels=[1,2]"],
        )
        assert found.join == JoinSettings(k=0, epsilon=0.002, testify="other_scan")
        assert found.data.labels == (1, 2)

    def test_take_bare_words_as_strings(self):
        assert (
            with_settings(Config(), ["join.testify=other_stretch"]).join.testify == "other_stretch"
        )

    def test_the_last_of_two_counts(self):
        assert with_settings(Config(), ["join.k=1", "join.k=2"]).join.k == 2

    def test_none_change_nothing(self):
        assert with_settings(Config(), []) == Config()

    def test_that_make_no_sense_are_refused(self):
        for text in ("join.k=", "join.k=[", "join.k=many"):
            with pytest.raises(ConfigError, match=r"join\.k = .*: it must be a whole number"):
                with_settings(Config(), [text])


class TestDigest:
    def test_every_setting_has_another_value_here(self):
        assert sorted(OTHER) == sorted(every_setting())

    @pytest.mark.parametrize("path", sorted(OTHER))
    def test_changes_with_any_one_setting(self, path):
        step, key = path.split(".")
        other = changed(path, OTHER[path])
        assert as_dict(other)[step][key] == OTHER[path]
        assert other.digest() != Config().digest()
        assert differences(as_dict(Config()), as_dict(other)) == [
            f"{path}: {as_dict(Config())[step][key]} → {OTHER[path]}"
        ]

    def test_is_another_for_each_of_them(self):
        digests = {changed(path, value).digest() for path, value in OTHER.items()}
        assert len(digests) == len(OTHER)

    def test_does_not_depend_on_the_order_of_keys(self):
        tables = as_dict(Config())
        turned = {
            step: dict(reversed(value.items())) if isinstance(value, dict) else value
            for step, value in reversed(tables.items())
        }
        assert list(turned) != list(tables)
        assert digest_of(turned) == digest_of(tables) == Config().digest()

    def test_is_the_same_for_equal_settings(self):
        assert from_dict({"join": {"k": 2047}}).digest() == Config().digest()
        assert len(Config().digest()) == 64


class TestDifferences:
    def test_name_the_setting_and_both_values(self):
        old, new = as_dict(Config()), as_dict(changed("patches.size", 32))
        assert differences(old, new) == ["patches.size: 24 → 32"]
        assert differences(new, old) == ["patches.size: 32 → 24"]
        assert differences(old, old) == []

    def test_name_settings_that_only_one_side_has(self):
        assert differences({"a": {"b": 1}}, {"a": {}, "c": 2}) == ["a.b: 1 → None", "c: None → 2"]


class TestRecords:
    def test_settings_cannot_be_changed(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            Config().join.k = 3  # type: ignore[misc]

    def test_every_step_is_a_record_of_its_own(self):
        steps = [field.name for field in dataclasses.fields(config.Config)]
        assert steps == ["preset", *dict.fromkeys(path.split(".")[0] for path in every_setting())]

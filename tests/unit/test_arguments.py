import pytest

from maskwitness import join
from maskwitness.arguments import config_of, explain_device, free_place, labels_of
from maskwitness.config import preset
from maskwitness.errors import ConfigError


def test_settings_go_on_top_of_the_file_and_the_file_on_top_of_the_preset(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text("[join]\nk = 5\nepsilon = 0.5\n", encoding="utf-8")
    chosen = config_of("paper", file, ["join.k=7"], "2,1")
    assert (chosen.join.k, chosen.join.epsilon, chosen.data.labels) == (7, 0.5, (2, 1))
    assert config_of("paper", None, None, None) == preset("paper")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.toml cannot be read"):
        config_of("paper", tmp_path / "missing.toml", None, None)


def test_labels_are_whole_numbers():
    assert labels_of("1,2") == [1, 2]
    with pytest.raises(ConfigError, match="--label 'one'"):
        labels_of("one")


def test_a_taken_place_gets_a_neighbour(tmp_path):
    place = tmp_path / "demo"
    assert free_place(place) == place
    place.mkdir()
    assert free_place(place) == place
    (place / "file").touch()
    (tmp_path / "demo-2").mkdir()
    (tmp_path / "demo-2" / "file").touch()
    assert free_place(place) == tmp_path / "demo-3"


def test_a_device_that_is_missing_is_said_only_where_it_was_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(join, "why_no_device", lambda: "there is none")
    explain_device("auto")
    explain_device("cpu")
    assert capsys.readouterr().err == ""
    explain_device("cuda")
    assert capsys.readouterr().err == (
        "no CUDA device is used: there is none; the processor works instead\n"
    )
    monkeypatch.setattr(join, "why_no_device", lambda: "")
    explain_device("cuda")
    assert capsys.readouterr().err == ""

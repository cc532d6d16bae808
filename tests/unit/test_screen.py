"""What the terminal shows of a run: advice, notes, and names exactly as the user wrote them."""

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from maskwitness import screen
from maskwitness.run import Run, audit, check, open_run
from tests.conftest import WIDE

ODD = "[red]a[1] [/b] {x}"  # to rich, parts of this are orders


def shown(run: Any, capsys: pytest.CaptureFixture[str], show: Any = screen.show_audit) -> str:
    show(run)
    return re.sub(r"[\s│]+", " ", capsys.readouterr().out)


def changed(run: Run, **summary: Any) -> Run:
    """Return the run with other counts in its summary."""
    return dataclasses.replace(run, state={**run.state, "summary": {**run.summary, **summary}})


@pytest.fixture
def odd_run(phantom_data: Path, tmp_path: Path) -> Run:
    """Return a run whose names, paths and reasons are full of brackets."""
    names = [f"{file.name}" for file in sorted((phantom_data / "labelsTr").iterdir())]
    image = phantom_data / "imagesTr" / names[0].replace(".nii", "_0000.nii")
    mask = phantom_data / "labelsTr" / names[0]
    (tmp_path / "cases.csv").write_text(
        f"image,mask,name\n{image},{mask},{ODD}\n{image},[bold]no.nii.gz,gone\n"
    )
    place = tmp_path / "[green]run"
    return audit(tmp_path / "cases.csv", place, config=WIDE, workers=1)


def test_names_and_reasons_are_shown_as_they_are(odd_run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    told = shown(odd_run, capsys)
    assert "[red]a[1] [_b] {x}" in told
    assert "[bold]no.nii.gz" in told
    assert str(odd_run.path / "scores.parquet") in told
    assert str(odd_run.path) in shown(odd_run, capsys, screen.show_info)


def test_what_the_data_set_left_out_is_said(odd_run, capsys):
    assert odd_run.state["dataset"]["notes"]
    told = shown(odd_run, capsys)
    for note in screen.audit_facts(odd_run)["notes"]:
        assert f"Note: {' '.join(note.split())}" in told


def test_few_scored_points_bring_advice_with_a_wider_epsilon(finished_run, capsys):
    many = changed(finished_run, scored=finished_run.summary["patches"])
    assert "join.epsilon" not in shown(many, capsys)
    few = changed(finished_run, scored=1)
    assert "unscored is not clean" in shown(few, capsys)
    assert "--set join.epsilon=0.02" in shown(few, capsys)


def test_wide_vessels_bring_advice_with_patch_and_reach(finished_run, capsys):
    fits = changed(finished_run, wider_than_patch=0)
    assert "patches.extent_mm" not in shown(fits, capsys)
    wide = changed(finished_run, wider_than_patch=3, widest_mm=35.0, wide_mm=20.0)
    told = shown(wide, capsys)
    assert "(widest 35.0 mm)" in told
    assert "--set patches.extent_mm=30 --set quality.reach_mm=15" in told


def test_one_wide_point_is_said_and_brings_no_other_patch(finished_run, capsys):
    wide = changed(finished_run, wider_than_patch=1, widest_mm=35.0, wide_mm=1.9)
    told = shown(wide, capsys)
    assert "(widest 35.0 mm)" in told
    assert "patches.extent_mm" not in told


def test_a_result_that_is_gone_is_said_to_be_missing(finished_run, tmp_path, capsys):
    copied = Path(shutil.copytree(finished_run.path, tmp_path / "run"))
    (copied / "scores.parquet").unlink()
    told = shown(open_run(copied), capsys, screen.show_info)
    assert "scores.parquet (missing: audit again to make it again)" in told
    assert told.count("(missing") == 1


def test_the_hint_after_a_phantom_finds_something(tmp_path, capsys):
    screen.show_phantom(tmp_path, 0.01)
    assert (
        f"maskwitness audit {tmp_path} -o RUN --set join.epsilon=0.01," in capsys.readouterr().out
    )


def test_no_finding_is_not_called_a_clean_bill(phantom_data, tmp_path, capsys):
    run = audit(phantom_data, tmp_path / "run", config={"join": {"epsilon": 1e-9}}, workers=1)
    assert run.summary["scored"] == 0
    assert "No finding: no point was scored." in shown(run, capsys)


def test_the_facts_for_a_machine_are_those_of_the_run(finished_run):
    facts = screen.info_facts(finished_run)
    assert facts["findings"] == len(finished_run.findings)
    assert facts["config"]["join"]["epsilon"] == 0.01
    worst = finished_run.findings.slice(0, screen.SHOWN).to_pylist()
    assert facts["worst"] == worst
    assert [row["finding"] for row in worst] == list(range(len(worst)))


def test_an_unfinished_run_is_shown_as_what_it_is(finished_run, capsys):
    assert "is not finished" not in shown(finished_run, capsys)
    kept = {"patches": finished_run.state["stages"]["patches"]}
    half = dataclasses.replace(finished_run, state={**finished_run.state, "stages": kept})
    assert "The audit is not finished (stages done: patches). Run it again" in shown(half, capsys)
    assert not screen.audit_facts(half)["finished"]
    assert screen.audit_facts(half)["worst"] == []


def test_a_run_that_was_interrupted_at_once_is_shown(phantom_data, tmp_path, capsys):
    def interrupt(stage, done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(phantom_data, tmp_path / "run", progress=interrupt)
    run = open_run(tmp_path / "run")
    assert "is not finished (stages done: none)" in shown(run, capsys, screen.show_info)
    assert screen.info_facts(run)["refused"] == []


def test_a_run_without_a_scan_says_so(finished_run, capsys):
    none = changed(finished_run, scans_audited=0)
    assert "No scan could be audited" in shown(none, capsys)


def test_a_check_with_few_scored_points_says_what_that_means(
    finished_run, phantom_data, tmp_path, capsys
):
    image = phantom_data / "imagesTr" / "phantom_000_0000.nii.gz"
    mask = phantom_data / "labelsTr" / "phantom_000.nii.gz"
    done = check(finished_run, image=image, mask=mask, output=tmp_path / "[b]out")
    assert "unscored is not clean" not in shown(done, capsys, screen.show_check)
    few = dataclasses.replace(done, state={**done.state, "summary": {**done.summary, "scored": 1}})
    told = shown(few, capsys, screen.show_check)
    assert "unscored is not clean. The run has few look-alikes of this scan." in told
    assert "phantom_000 of the run has the same image; it did not testify" in told
    assert str(tmp_path / "[b]out" / "scores.parquet") in told
    facts = screen.check_facts(done)
    assert facts["scored"] == done.summary["scored"]
    assert facts["worst"] == done.findings.slice(0, screen.SHOWN).to_pylist()


def test_progress_is_silent_where_nobody_watches(capsys):
    with screen.progress() as tell:
        tell("patches", 1, 3)
    assert capsys.readouterr() == ("", "")

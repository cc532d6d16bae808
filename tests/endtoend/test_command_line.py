"""The command line as a user meets it: help, tables, JSON, exit codes, mistakes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from maskwitness.run import open_check, open_run

COMMANDS = ["audit", "check", "info", "phantom", "judge", "demo", "bench"]


def maskwitness(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-m", "maskwitness", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment,
        check=False,
    )


def assert_refused(done: subprocess.CompletedProcess[str], sentence: str) -> None:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert sentence in " ".join(done.stderr.split()), done.stderr


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("demo") / "demo"
    done = maskwitness("demo", "--output", place, "--scans", 3, "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["scans_audited"] == 3
    assert facts["judgement"]["points"] == facts["patches"]
    return place


def test_help_names_every_command_with_an_example():
    done = maskwitness("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert command in done.stdout
        told = maskwitness(command, "--help")
        assert told.returncode == 0
        assert f"Example: maskwitness {command}" in " ".join(told.stdout.split())


def test_the_demo_ends_with_what_a_newcomer_needs(tmp_path):
    done = maskwitness("demo", "--output", tmp_path / "demo", "--scans", 2)
    assert done.returncode == 0
    for words in ("scans", "points", "pairs", "unscored", "worst places", "planted errors"):
        assert words in done.stdout
    assert str(tmp_path / "demo" / "run" / "scores.parquet") in done.stdout
    assert done.stderr == ""  # no progress in a pipe
    again = maskwitness("demo", "--output", tmp_path / "demo", "--scans", 2)
    assert again.returncode == 0
    assert str(tmp_path / "demo-2" / "run") in again.stdout


def test_a_run_can_be_asked_about(demo):
    told = maskwitness("info", demo / "run")
    assert told.returncode == 0
    assert "join.epsilon" in told.stdout
    facts = json.loads(maskwitness("info", demo / "run", "--json").stdout)
    assert facts["config"]["preset"] == "paper"
    assert facts["pairs"] == open_run(demo / "run").summary["pairs"]


def test_a_run_can_be_judged(demo):
    told = maskwitness("judge", demo / "run", "--truth", demo / "data")
    assert told.returncode == 0
    assert "AUROC" in told.stdout
    facts = json.loads(
        maskwitness("judge", demo / "run", "--truth", demo / "data", "--json").stdout
    )
    assert 0 < facts["bad_share"] < 0.5
    assert 0 < facts["findings"]["hit_by_chance"] < facts["findings"]["total"]
    assert facts["voxels"]["auroc_neutral"] is not None
    assert "would by chance" in told.stdout
    assert "voxels, all scores 0" in told.stdout
    assert_refused(maskwitness("judge", demo / "run", "--truth", demo / "run"), "errors.csv")


def test_a_new_scan_is_checked_against_a_run(demo, tmp_path):
    written = maskwitness("phantom", tmp_path / "new", "--scans", 1, "--seed", 99)
    assert written.returncode == 0
    image = tmp_path / "new" / "imagesTr" / "phantom_000_0000.nii.gz"
    shutil.copy(image, tmp_path / "patient 7.nii.gz")
    mask = tmp_path / "new" / "labelsTr" / "phantom_000.nii.gz"
    words = ("check", demo / "run", "--image", tmp_path / "patient 7.nii.gz", "--mask", mask)
    done = maskwitness(*words, "-o", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    facts = json.loads(done.stdout)
    checked = open_check(tmp_path / "out")
    assert facts["scan"]["name"] == "patient 7"
    assert facts["excluded"] == []
    assert facts["scored"] == checked.summary["scored"] > 0
    assert facts["worst"] == checked.findings.slice(0, 10).to_pylist()
    assert_refused(maskwitness(*words, "-o", tmp_path / "out"), "say --redo to replace it")
    told = maskwitness(*words, "-o", tmp_path / "out", "--redo")
    assert told.returncode == 0
    assert str(tmp_path / "out" / "quality" / "patient 7.nii.gz") in told.stdout
    assert "near-identical images in the run" in told.stdout
    other = maskwitness(*words[:-1], demo / "data" / "labelsTr" / "phantom_000.nii.gz", "-o", mask)
    assert_refused(other, "is no former check")
    assert_refused(maskwitness(*words), "Missing option")


def test_a_scan_of_the_run_does_not_acquit_itself(demo, tmp_path):
    image = demo / "data" / "imagesTr" / "phantom_001_0000.nii.gz"
    mask = demo / "data" / "labelsTr" / "phantom_001.nii.gz"
    told = maskwitness(
        "check", demo / "run", "--image", image, "--mask", mask, "-o", tmp_path / "out"
    )
    assert told.returncode == 0, told.stderr
    assert "phantom_001 of the run has the same image; it did not testify" in told.stdout


def test_ctrl_c_ends_a_check_with_130_and_leaves_nothing(demo, tmp_path):
    image = demo / "data" / "imagesTr" / "phantom_001_0000.nii.gz"
    mask = demo / "data" / "labelsTr" / "phantom_001.nii.gz"
    process = subprocess.Popen(
        [sys.executable, "-m", "maskwitness", "check", demo / "run", "--image", image, "--mask",
         mask, "-o", tmp_path / "out"],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    while not any(tmp_path.iterdir()):
        time.sleep(0.01)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert b"Traceback" not in told
    assert list(tmp_path.iterdir()) == []


def test_an_audit_of_nothing_but_bad_scans_exits_1(tmp_path):
    (tmp_path / "data.csv").write_text("image,mask\nno.nii.gz,never.nii.gz\n")
    done = maskwitness("audit", tmp_path / "data.csv", "-o", tmp_path / "run")
    assert done.returncode == 1
    assert "Not audited" in done.stdout
    assert "no.nii.gz" in done.stdout
    facts = maskwitness("audit", tmp_path / "data.csv", "-o", tmp_path / "run", "--json")
    assert facts.returncode == 1
    assert json.loads(facts.stdout)["refused"][0]["reason"]
    judged = maskwitness("judge", tmp_path / "run", "--truth", tmp_path)
    assert_refused(judged, "could be audited, and so it has no scores")


def test_mistakes_are_said_in_a_sentence(demo, tmp_path):
    data, run = demo / "data", tmp_path / "run"
    assert_refused(maskwitness("audit", tmp_path / "nowhere", "-o", run), "nowhere")
    assert_refused(maskwitness("audit", data), "Missing option")
    assert_refused(
        maskwitness("audit", data, "-o", run, "--preset", "papers"), "no preset 'papers'"
    )
    assert_refused(
        maskwitness("audit", data, "-o", run, "--set", "patches.extend_mm=6"),
        "did you mean 'patches.extent_mm'?",
    )
    for label in ("one", "", "1,", "1.5"):
        done = maskwitness("audit", data, "-o", run, "--label", label)
        assert_refused(done, f"--label {label!r}: label values are whole numbers")
    assert_refused(maskwitness("audit", data, "-o", run, "--config", run / "no.toml"), "no.toml")
    assert_refused(maskwitness("info", tmp_path), "is no run directory")
    assert_refused(maskwitness("bench", "everything"), "No such command 'everything'")
    assert_refused(maskwitness("bench", "join", "--patches", "12,a"), "whole numbers, like 12500")
    assert_refused(maskwitness("phantom", data), "data")
    assert_refused(
        maskwitness("phantom", run, "--size", "huge"), "size must be one of small, medium, imagecas"
    )
    assert_refused(maskwitness("audits"), "No such command")
    (tmp_path / "file").touch()  # the system refuses to make a folder below it
    for words in (("audit", data, "-o"), ("phantom",), ("demo", "-o")):
        place = tmp_path / "file" / "below"
        assert_refused(maskwitness(*words, place), str(place))
    assert not run.exists()


def test_a_damaged_run_or_table_is_said_in_a_sentence(tmp_path):
    (tmp_path / "run.json").write_text('{"format": 1}')
    assert_refused(maskwitness("info", tmp_path), "run.json is damaged: it has no maskwitness, no")
    (tmp_path / "data.csv").write_bytes(b"image,mask\na\0.nii.gz,b.nii.gz\n")
    done = maskwitness("audit", tmp_path / "data.csv", "-o", tmp_path / "new")
    assert_refused(done, "is no file name: it holds a zero byte")


def test_settings_come_from_preset_file_and_command_line(demo, tmp_path):
    (tmp_path / "mine.toml").write_text("[join]\nk = 7\nepsilon = 0.02\n")
    done = maskwitness(
        "audit", demo / "data", "-o", tmp_path / "run", "--config", tmp_path / "mine.toml",
        "--set", "join.epsilon=0.01", "--label", "1,2", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    config = open_run(tmp_path / "run").config
    assert (config.join.k, config.join.epsilon, config.data.labels) == (7, 0.01, (1, 2))


def test_an_audit_with_nothing_to_do_says_so(demo):
    words = ("audit", demo / "data", "-o", demo / "run", "--set", "join.epsilon=0.01")
    done = maskwitness(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Nothing had to be done:")
    assert json.loads(maskwitness(*words, "--json").stdout)["stages_done"] == []


def test_ctrl_c_exits_130_and_the_audit_goes_on_later(demo, tmp_path):
    arguments = [
        sys.executable,
        "-m",
        "maskwitness",
        "audit",
        demo / "data",
        "-o",
        tmp_path / "run",
    ]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while not (tmp_path / "run" / "run.json").exists():
        time.sleep(0.01)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert told == b"interrupted; run the same command to go on\n"
    assert maskwitness("audit", demo / "data", "-o", tmp_path / "run").returncode == 0


def test_ctrl_c_in_a_phantom_leaves_nothing_behind(tmp_path):
    words = [sys.executable, "-m", "maskwitness", "phantom", tmp_path / "data", "--workers", "1"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE)
    while not (tmp_path / "data").exists():
        time.sleep(0.01)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (130, b"interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_before_anything_has_begun_exits_130_too():
    code = (
        "import sys\n"
        "class Early:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Early())\n"
        "from maskwitness.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"interrupted\n")


@pytest.mark.parametrize(
    "words", [("info", "RUN"), ("info", "RUN", "--json"), ("--help",), ("--version",)]
)
def test_a_reader_who_has_seen_enough_is_no_mistake(words, demo):
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [str(demo / "run") if word == "RUN" else word for word in words]
    done = subprocess.run(
        [sys.executable, "-m", "maskwitness", *arguments],
        stdout=writer, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_shell_completion_is_offered():
    done = subprocess.run(
        [sys.executable, "-m", "maskwitness"],
        env={**os.environ, "_MASKWITNESS_COMPLETE": "complete_bash", "COMP_WORDS": "maskwitness au",
             "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert "audit" in done.stdout


def test_a_contest_of_the_nearest_is_one_json_object_and_a_folder(tmp_path):
    done = maskwitness(
        "bench", "nearest", "--patches", "800,400", "--k", 4, "--json", "-o", tmp_path / "new"
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    result = json.loads(done.stdout)
    assert {row["patches"] for row in result["rows"]} == {400, 800}
    for row in result["rows"]:
        if "skipped" not in row:
            assert row["same"]
            assert row["seconds"] > 0
    for name in ("machine", "growth", "threads", "k", "title", "notes"):
        assert result[name]
    written = json.loads((tmp_path / "new" / "nearest.json").read_text(encoding="utf-8"))
    assert written["rows"] == result["rows"]
    again = maskwitness("bench", "nearest", "-o", tmp_path / "new")
    assert_refused(again, "is not an empty folder")

"""What the terminal shows: progress while it works, tables when it is done.

Progress goes to stderr and only to a terminal; results go to stdout, so that both can be piped.
"""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from maskwitness.judge import Judgement
from maskwitness.run import Check, Run
from maskwitness.run.stages import Progress as Tell

TITLES = {
    "phantom": "making scans",
    "patches": "cutting patches (scans)",
    "bank": "reading the run's patches",
    "pairs": "finding witnesses (patches)",
    "scores": "scoring (patches)",
    "quality": "painting quality maps (scans)",
    "judge": "judging",
}
SHOWN = 10  # findings listed on the screen; all are in findings.parquet


@contextmanager
def progress() -> Iterator[Tell]:
    """Show a bar for each stage while the block runs; nothing where nobody watches."""
    if not sys.stderr.isatty():
        yield lambda stage, done, total: None
        return
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    )  # fmt: skip
    bars: dict[str, Any] = {}
    with Progress(*columns, console=console) as shown:

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in bars:
                bars[stage] = shown.add_task(TITLES.get(stage, stage), total=total)
            shown.update(bars[stage], completed=done, total=total)

        yield tell


def audit_facts(run: Run) -> dict[str, Any]:
    """Return an audit's outcome for a machine."""
    refused = [{"scan": s["name"], "reason": s["reason"]} for s in _refused(run)]
    scored = "scores" in run.state["stages"]
    return {
        "run": str(run.path),
        "finished": run.is_finished,
        **run.summary,
        "notes": run.state["dataset"].get("notes", []),
        "refused": refused,
        "worst": run.findings.slice(0, SHOWN).to_pylist() if scored else [],
    }


def info_facts(run: Run) -> dict[str, Any]:
    """Return all of run.json and the outcome for a machine."""
    return {**run.state, **audit_facts(run)}


def show_audit(run: Run, *, nothing_done: bool = False) -> None:
    """Print the outcome of an audit; say so if it had been finished before."""
    console = Console()
    if nothing_done:
        console.print("Nothing had to be done: data and settings are those of this finished run.")
    for note in run.state["dataset"].get("notes", []):
        console.print(f"Note: {note}", markup=False, highlight=False, soft_wrap=True)
    _print_refused(console, run)
    if run.summary.get("scans_audited") == 0:
        console.print("No scan could be audited.", style="bold")
        return
    if not run.is_finished:
        done = ", ".join(run.state["stages"]) or "none"
        console.print(
            f"The audit is not finished (stages done: {done}). Run it again to go on.",
            style="yellow",
        )
    if "scores" not in run.state["stages"]:
        return
    _print_counts(console, run)
    _print_worst(console, run)
    _print_files(console, run)


def check_facts(check: Check) -> dict[str, Any]:
    """Return a check's outcome for a machine."""
    state = {key: value for key, value in check.state.items() if key != "summary"}
    worst = check.findings.slice(0, SHOWN).to_pylist()
    return {"check": str(check.path), **state, **check.summary, "worst": worst}


def show_check(check: Check) -> None:
    """Print what a run's witnesses say of one new scan."""
    console = Console()
    s = check.summary
    for scan in check.state["excluded"]:
        console.print(
            f"Note: {scan['name']} of the run has {scan['because']}; it did not testify.",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
    title = f"The check of {escape(check.name)}"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    why = ", ".join(f"{count:,} {reason}" for reason, count in s["unscored"].items())
    for name, value, meaning in (
        ("points", s["patches"], "places on the vessels' centrelines, a patch cut at each"),
        ("pairs", s["pairs"], "near-identical images in the run"),
        ("scored", s["scored"], _share(s["scored"], s["patches"])),
        ("unscored", s["patches"] - s["scored"], why),
        (
            "bad points",
            s["bad_points"],
            f"score below {check.state['bad_below']:.2f}, as in the run",
        ),
        ("findings", s["findings"], "bad points in a row on one branch: one place to look at"),
    ):
        table.add_row(name, f"{value:,}", meaning)
    console.print(table)
    if s["scored"] < s["patches"] / 2:
        console.print(
            f"{_share(s['scored'], s['patches'])} of the points could be scored. Of the others "
            "nothing is known: unscored is not clean.\nThe run has few look-alikes of this scan. "
            "More scans like it, audited with a wider ε, give more.",
            style="yellow", highlight=False,
        )  # fmt: skip
    _print_worst(console, check)
    console.print("\nWhere things are")
    _print_place(console, "a score for every point", check.path / "scores.parquet")
    _print_place(console, "the places to look at, worst first", check.path / "findings.parquet")
    _print_place(console, "the quality map", check.path / "quality" / f"{check.name}.nii.gz")


def show_info(run: Run) -> None:
    """Print what a run holds, its stages and its settings."""
    console = Console()
    state = run.state
    console.print(
        f"[bold]{escape(str(run.path))}[/bold]  made by maskwitness {state['maskwitness']}"
    )
    dataset = state["dataset"]
    root = escape(str(dataset.get("root", "?")))
    console.print(f"data set: {root} ({dataset.get('kind', '?')})")
    stages = Table(title="Stages", title_justify="left")
    stages.add_column("stage")
    stages.add_column("finished")
    stages.add_column("seconds", justify="right")
    for name, stage in state["stages"].items():
        stages.add_row(name, stage["finished"], f"{stage['seconds']:.1f}")
    console.print(stages)
    settings = Table(title=f"Settings (preset {state['config']['preset']})", title_justify="left")
    settings.add_column("setting")
    settings.add_column("value")
    for step, values in state["config"].items():
        if isinstance(values, dict):
            for key, value in values.items():
                settings.add_row(f"{step}.{key}", escape(str(value)))
    console.print(settings)
    show_audit(run)


def show_phantom(out: Path, epsilon: float) -> None:
    """Say what was made and what to do with it: for so small a data set, with a wider ε."""
    Console().print(
        f"A data set is in {out}, its truth in {out / 'truth'}.\n"
        f"Next: maskwitness audit {out} -o RUN --set join.epsilon={epsilon:g}, "
        f"then maskwitness judge RUN --truth {out}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def show_judgement(judgement: Judgement) -> None:
    """Print how well the planted errors were found."""
    _print_judgement(Console(), judgement)


def show_demo(run: Run, judgement: Judgement, data: Path) -> None:
    """Print the demo's outcome, for somebody who sees all this for the first time."""
    console = Console()
    console.print(
        f"\n{run.summary['scans']} synthetic CT scans were made, with annotation errors planted in "
        "their masks. Then they were\naudited as the paper does it, from images and masks alone, "
        f"but with ε = {run.config.join.epsilon:g} for so small a data set.\n",
        highlight=False,
        soft_wrap=True,
    )
    _print_counts(console, run)
    _print_worst(console, run)
    _print_judgement(console, judgement)
    _print_files(console, run)
    _print_place(console, "the scans and their truth", data)


def show_bench(result: dict[str, Any]) -> None:
    """Print a benchmark's rows: what, ours, the peer, and how many times faster ours is."""
    console = Console()
    table = Table(title=result["title"], title_justify="left")
    for name in ("step", "ours (s)", "peer", "peer (s)", "ratio"):
        table.add_column(name, justify="left" if name in ("step", "peer") else "right")
    for row in result["rows"]:
        peer = row.get("peer_s")
        ratio = "" if peer is None else f"{peer / row['ours_s']:.1f} ×"
        peer_text = "" if peer is None else f"{peer:.2f}"
        table.add_row(row["step"], f"{row['ours_s']:.2f}", row.get("peer", ""), peer_text, ratio)
    console.print(table)
    for line in result["notes"]:
        console.print(line, highlight=False)


def _print_refused(console: Console, run: Run) -> None:
    refused = _refused(run)
    if not refused:
        return
    table = Table(title="Not audited", title_justify="left", show_lines=True)
    table.add_column("scan", no_wrap=True)
    table.add_column("because")
    for row in refused:
        table.add_row(escape(row["name"]), escape(row["reason"]))
    console.print(table)


def _refused(run: Run) -> list[dict[str, Any]]:
    if "scans" not in run.summary:  # an audit that was interrupted in its first stage
        return []
    return [row for row in run.scans.to_pylist() if row["status"] != "audited"]


def _print_counts(console: Console, run: Run) -> None:
    s = run.summary
    table = Table(title="The audit", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    unscored = s["patches"] - s["scored"]
    why = ", ".join(f"{count:,} {reason}" for reason, count in s["unscored"].items())
    rows = [
        ("scans", s["scans_audited"], f"of {s['scans']}"),
        ("points", s["patches"], "places on the vessels' centrelines, a patch cut at each"),
        ("pairs", s["pairs"], "patches whose images are near-identical"),
        ("scored", s["scored"], _share(s["scored"], s["patches"])),
        ("unscored", unscored, f"{_share(unscored, s['patches'])}: {why}" if why else ""),
        ("bad points", s["bad_points"], _bad_rule(run)),
        ("findings", s["findings"], "bad points in a row on one branch: one place to look at"),
    ]
    for name, value, meaning in rows:
        table.add_row(name, f"{value:,}", meaning)
    console.print(table)
    for advice in _advice(run):
        console.print(advice, style="yellow", highlight=False)


def _advice(run: Run) -> Iterator[str]:
    s = run.summary
    if s["wider_than_patch"]:
        # Not the widest point: at a junction or a leak the sphere in the mask is larger than any
        # vessel, and one such point would make all patches too coarse.
        extent_mm = math.ceil(s["wide_mm"] * 1.5)
        fits = extent_mm <= run.config.patches.extent_mm
        yield (
            f"{s['wider_than_patch']:,} points ({_share(s['wider_than_patch'], s['patches'])}) lie "
            f"in vessels wider than the patch of {run.config.patches.extent_mm:g} mm (widest "
            f"{s['widest_mm']:.1f} mm).\nTheir patches see no vessel wall."
        ) + (
            ""
            if fits
            else f" For 99.5 % of the points --set patches.extent_mm={extent_mm} "
            f"--set quality.reach_mm={extent_mm / 2:g} would do."
        )
    if s["scored"] < s["patches"] / 2:
        wider = 2 * run.config.join.epsilon
        yield (
            f"{_share(s['scored'], s['patches'])} of the points could be scored. Of the others "
            "nothing is known: unscored is not clean.\nMore scans give more look-alikes. So does a "
            f"wider ε, at the price of worse ones: --set join.epsilon={wider:g}"
        )


def _bad_rule(run: Run) -> str:
    findings = run.config.findings
    return f"score below {findings.threshold:g}, or among the worst {findings.worst_share:.0%}"


def _print_worst(console: Console, run: Run | Check) -> None:
    found = run.findings
    if not len(found):
        reason = "no point is bad" if run.summary["scored"] else "no point was scored"
        console.print(f"No finding: {reason}.")
        return
    table = Table(title="The worst places (x, y, z in world mm, RAS+)", title_justify="left")
    for name in ("", "scan", "x", "y", "z", "length mm", "score", "the mask is"):
        table.add_column(name, justify="left" if name in ("scan", "the mask is") else "right")
    for row in found.slice(0, SHOWN).to_pylist():
        table.add_row(
            str(row["finding"] + 1),
            escape(row["scan"]),
            *(f"{row[f'centre_{axis}_mm']:.1f}" for axis in "xyz"),
            f"{row['length_mm']:.1f}",
            f"{row['worst_score']:.1f}",
            row["kind"],
        )
    console.print(table)
    if len(found) > SHOWN:
        console.print(f"and {len(found) - SHOWN} more in findings.parquet")


def _print_judgement(console: Console, judgement: Judgement) -> None:
    facts = judgement.to_dict()
    found = facts["findings"]
    chance = found["hit_by_chance"]
    beside = "" if chance is None else f" ({chance:.1f} would by chance)"
    console.print(
        f"\n[bold]Against the truth[/bold]: {found['hit']} of {found['total']} findings lie on a "
        f"planted error{beside}; {found['found']} of {found['planted']} planted errors were found.",
        highlight=False,
        soft_wrap=True,
    )
    table = Table(title="How well bad points rank below good ones", title_justify="left")
    table.add_column("points", no_wrap=True)
    for name in ("scored", "AUROC", "AP", "AUROC, scored", "AP, scored", "found"):
        table.add_column(name, justify="right")
    figures = ("auroc", "ap", "auroc_scored", "ap_scored")
    every = (facts[name] for name in ("auroc_all", "ap_all", "auroc_scored", "ap_scored"))
    table.add_row("all", _percent(facts["scored"]), *map(_number, every), "")
    for kind, row in facts["kinds"].items():
        table.add_row(
            kind.replace("_", " "),
            _percent(row["coverage"]),
            *(_number(row[name]) for name in figures),
            f"{row['found']} of {row['planted']}",
        )
    voxels = facts["voxels"]
    for name, end in (("voxels, quality map", ""), ("voxels, all scores 0", "_neutral")):
        table.add_row(name, "", _number(voxels[f"auroc{end}"]), _number(voxels[f"ap{end}"]))
    console.print(table)
    console.print(f"{_percent(facts['bad_share'])} of all points are bad.", highlight=False)


def _print_files(console: Console, run: Run) -> None:
    console.print("\nWhere things are")
    for name, meaning in (
        ("scores.parquet", "a score for every point"),
        ("findings.parquet", "the places to look at, worst first"),
        ("quality", "a quality map for every scan"),
    ):
        gone = "" if (run.path / name).exists() else " (missing: audit again to make it again)"
        _print_place(console, meaning, f"{run.path / name}{gone}")


def _print_place(console: Console, meaning: str, place: Path | str) -> None:
    console.print(f"  {meaning:<35} {place}", markup=False, highlight=False, soft_wrap=True)


def _share(part: int, whole: int) -> str:
    return _percent(part / whole if whole else None)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"

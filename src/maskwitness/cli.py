"""The command line: parse, call, print. Everything heavy is imported inside the commands."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from maskwitness.arguments import (
    ConfigFile,
    Device,
    Json,
    Label,
    Preset,
    Settings,
    Workers,
    answer,
    config_of,
    explain_device,
    free_place,
)
from maskwitness.bench import command as bench
from maskwitness.errors import MaskwitnessError, explain


class _Enough(Exception):
    """The reader of our output, ``head`` for one, has gone."""


class _Interrupted(Exception):
    """The user pressed Ctrl-C."""


class _Commands(TyperGroup):
    """Commands whose ends are ours: Typer would exit 1 for a broken pipe and 130 without a word."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _own_ends():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _own_ends():
            return super().invoke(ctx)


@contextmanager
def _own_ends() -> Iterator[None]:
    try:
        yield
    except (BrokenPipeError, SystemExit) as error:  # SystemExit is rich's way to say the same
        raise _Enough from error
    except KeyboardInterrupt as error:
        raise _Interrupted from error


app = typer.Typer(
    name="maskwitness",
    cls=_Commands,
    help="Find annotation errors in vessel segmentation data sets that were drawn only once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(bench.app, name="bench")

# The paper's ε of 0.001 was chosen for three million patches. A few thousand have next to no pairs
# that are so alike; ten times the squared difference is still hard to see in a noisy patch.
DEMO: dict[str, Any] = {"preset": "paper", "join": {"epsilon": 0.01}}


def main() -> None:
    """Run the command line: exit 0 done, 1 there is something to complain of, 2 used wrongly."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # here, where a broken pipe is known, and not at the very end
    except (_Enough, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left goes nowhere
        sys.exit(0)
    except (_Interrupted, KeyboardInterrupt):
        later = "; run the same command to go on" if sys.argv[1:2] == ["audit"] else ""
        print(f"interrupted{later}", file=sys.stderr)
        sys.exit(130)
    except MaskwitnessError as error:
        print(f"maskwitness: {explain(error)}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # no room, no permission, no such folder: the user's to put right
        place = f"{error.filename}: " if error.filename else ""
        print(f"maskwitness: {place}{error.strerror or error}", file=sys.stderr)
        sys.exit(2)


def _show_version(wanted: bool) -> None:
    if wanted:
        from maskwitness import __version__

        print(f"maskwitness {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


@app.command()
def audit(
    dataset: Annotated[
        Path | None,
        typer.Argument(
            help="An nnU-Net raw folder, an ImageCAS folder, a decathlon or MONAI datalist "
            "(.json), or a table (.csv, .parquet) with the columns image and mask.",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The run directory to write or continue.")
    ] = ...,  # type: ignore[assignment]
    images: Annotated[
        Path | None, typer.Option(help="A folder of images, instead of DATASET.")
    ] = None,
    masks: Annotated[
        Path | None, typer.Option(help="The folder of masks with the same file names.")
    ] = None,
    preset: Preset = "paper",
    config: ConfigFile = None,
    settings: Settings = None,
    label: Label = None,
    workers: Workers = None,
    device: Device = "auto",
    redo: Annotated[
        bool, typer.Option("--redo", help="Replace what other settings or data made stale.")
    ] = False,
    json_: Json = False,
) -> None:
    """Audit a data set: scores, findings and quality maps. Run again, it goes on where it stopped.

    Example: `maskwitness audit Dataset001_Vessels -o run --label 1`
    """
    from maskwitness import screen
    from maskwitness.run import audit as audit_dataset

    chosen = config_of(preset, config, settings, label)
    worked = set()

    def note(stage: str, done: int, total: int) -> None:
        worked.add(stage)
        tell(stage, done, total)

    explain_device(device)
    with screen.progress() as tell:
        run = audit_dataset(
            dataset,
            output,
            images=images,
            masks=masks,
            config=chosen,
            workers=workers,
            device=device,
            redo=redo,
            progress=note,
        )
    facts = {**screen.audit_facts(run), "stages_done": sorted(worked)}
    answer(json_, facts, lambda: screen.show_audit(run, nothing_done=not worked))
    if not run.summary["scans_audited"]:
        raise typer.Exit(1)


@app.command()
def check(
    run: Annotated[Path, typer.Argument(help="A finished run directory; it is not changed.")],
    image: Annotated[Path, typer.Option(help="The new scan's image.")],
    mask: Annotated[Path, typer.Option(help="Its mask; the run's labels are vessel.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write.")],
    device: Device = "auto",
    redo: Annotated[bool, typer.Option("--redo", help="Replace a former check.")] = False,
    json_: Json = False,
) -> None:
    """Check one new scan against a finished run: its scores, findings and quality map.

    Example: `maskwitness check run --image new.nii.gz --mask new_mask.nii.gz -o checked`
    """
    from maskwitness import screen
    from maskwitness.run import check as check_scan

    explain_device(device)
    with screen.progress() as tell:
        done = check_scan(
            run, image=image, mask=mask, output=output, device=device, redo=redo, progress=tell
        )
    answer(json_, screen.check_facts(done), lambda: screen.show_check(done))


@app.command()
def info(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    json_: Json = False,
) -> None:
    """Say what a run directory holds: scans, refusals, counts, worst places, settings.

    Example: `maskwitness info run`
    """
    from maskwitness import screen
    from maskwitness.run import open_run

    opened = open_run(run)
    answer(json_, screen.info_facts(opened), lambda: screen.show_info(opened))


@app.command()
def phantom(
    out: Annotated[Path, typer.Argument(help="The folder to write; it must not hold anything.")],
    scans: Annotated[int, typer.Option(min=1, help="How many scans.")] = 12,
    size: Annotated[str, typer.Option(help="small, medium or imagecas (512 × 512 × 275).")] = (
        "small"
    ),
    noise: Annotated[
        str, typer.Option(help="Planted errors: none, local, heavy or systematic.")
    ] = "local",
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same bytes.")] = 0,
    oblique_bias: Annotated[
        float, typer.Option(min=1.0, help="How many times likelier errors are on oblique vessels.")
    ] = 1.0,
    thin_bias: Annotated[
        float, typer.Option(min=1.0, help="How many times likelier errors are on thin vessels.")
    ] = 1.0,
    workers: Workers = None,
    json_: Json = False,
) -> None:
    """Make a data set with planted, known annotation errors, and its truth.

    Example: `maskwitness phantom data --scans 24 --seed 7`
    """
    from maskwitness import screen

    values = {
        "scans": scans,
        "size": size,
        "noise": noise,
        "seed": seed,
        "oblique_bias": oblique_bias,
        "thin_bias": thin_bias,
    }
    with screen.progress() as tell:
        _write_phantom(out, values, workers, tell)
    answer(
        json_,
        {"phantom": str(out), **values},
        lambda: screen.show_phantom(out, DEMO["join"]["epsilon"]),
    )


@app.command()
def judge(
    run: Annotated[Path, typer.Argument(help="The run directory of an audited phantom.")],
    truth: Annotated[Path, typer.Option(help="The phantom's folder.")],
    json_: Json = False,
) -> None:
    """Say how well a run found the errors that were planted in a phantom.

    Example: `maskwitness judge run --truth data`
    """
    from maskwitness import screen
    from maskwitness.run import open_run

    opened = open_run(run)
    judgement = _judge(opened, truth)
    answer(json_, judgement.to_dict(), lambda: screen.show_judgement(judgement))


@app.command()
def demo(
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Where data and run go; if it is taken, a place beside it: demo-2.",
        ),
    ] = Path("demo"),
    scans: Annotated[int, typer.Option(min=2, help="How many phantom scans.")] = 12,
    seed: Annotated[int, typer.Option(min=0, help="Of the phantom.")] = 0,
    workers: Workers = None,
    json_: Json = False,
) -> None:
    """Show the whole thing in about a minute: phantom, audit, judge.

    Example: `maskwitness demo`
    """
    from maskwitness import screen
    from maskwitness.run import audit as audit_dataset

    place = free_place(output)
    data, run_folder = place / "data", place / "run"
    with screen.progress() as tell:
        _write_phantom(data, {"scans": scans, "seed": seed}, workers, tell)
        run = audit_dataset(data, run_folder, config=DEMO, workers=workers, progress=tell)
        tell("judge", 0, 1)
        judgement = _judge(run, data)
        tell("judge", 1, 1)
    facts = {**screen.audit_facts(run), "judgement": judgement.to_dict(), "data": str(data)}
    answer(json_, facts, lambda: screen.show_demo(run, judgement, data))


def _write_phantom(out: Path, values: dict[str, Any], workers: int | None, tell: Any) -> None:
    from maskwitness.join.plan import cores
    from maskwitness.phantom import PhantomSettings, write_phantom

    settings = PhantomSettings(**values)
    write_phantom(
        out,
        settings,
        workers=workers or cores(),
        on_scan=lambda done, total: tell("phantom", done, total),
    )


def _judge(run: Any, truth: Path) -> Any:
    from maskwitness.judge import findings_of, judge_run

    scores = run.scores
    points = {name: scores[name].to_numpy() for name in ("scan", "x_mm", "y_mm", "z_mm", "score")}
    findings = findings_of(run.findings.to_pylist(), points)
    return judge_run(points, findings, run.quality, truth, run.config.quality)

"""``maskwitness bench``: parse, call, print. Everything heavy is imported inside the commands."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from maskwitness.arguments import Json, answer
from maskwitness.errors import ConfigError

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")

Repeats = Annotated[int, typer.Option(min=1, help="Runs of each step; the best counts.")]
Patches = Annotated[str, typer.Option(help="How many patches are compared, one size or several.")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Of every contender. [default: one a core]")
]
OnDevice = Annotated[
    str, typer.Option(help="cpu or cuda: ours beside matrix products of torch, both there.")
]
Scans = Annotated[
    int, typer.Option(min=1, help="Most phantom scans made; their patches are mirrored beyond.")
]
Seed = Annotated[int, typer.Option(min=0, help="Of the phantoms and the noise.")]
PeerLimit = Annotated[
    str | None,
    typer.Option(
        help="Most patches for slow peers: 50000 for all, or faiss-range=50000,sklearn=12500. "
        "[default: sklearn=25000]"
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="A new or empty folder for the result and a picture."),
]


@app.callback()
def _bench() -> None:
    """Measure speed on this machine, beside what one would use instead.

    Example: `maskwitness bench scan`
    """


@app.command()
def scan(repeats: Repeats = 3, json_: Json = False) -> None:
    """Measure one phantom of ImageCAS size, from files to patches, and its quality map.

    Example: `maskwitness bench scan`
    """
    from maskwitness import screen
    from maskwitness.bench.scan import bench_scan

    result = bench_scan(repeats)
    answer(json_, result, lambda: screen.show_bench(result))


@app.command()
def thinning(
    mask: Annotated[Path, typer.Option(help="The mask to thin, in any format.")],
    repeats: Repeats = 3,
    json_: Json = False,
) -> None:
    """Measure the thinning of a mask of your own.

    Example: `maskwitness bench thinning --mask mask.nii.gz`
    """
    from maskwitness import screen
    from maskwitness.bench.scan import bench_thinning

    result = bench_thinning(repeats, mask)
    answer(json_, result, lambda: screen.show_bench(result))


@app.command()
def join(
    patches: Patches = "12500,25000,50000,100000",
    hard: Annotated[
        int, typer.Option(min=0, help="Patches of noise that nothing is ruled out in; 0: none.")
    ] = 25_000,
    epsilon: Annotated[float, typer.Option(help="A witness has a smaller MSE.")] = 0.001,
    k: Annotated[int, typer.Option("--k", min=1, help="Witnesses a patch, at most.")] = 2047,
    threads: Threads = None,
    device: OnDevice = "cpu",
    repeats: Repeats = 1,
    scans: Scans = 220,
    seed: Seed = 1,
    peer_limit: PeerLimit = None,
    output: Output = None,
    json_: Json = False,
) -> None:
    """Measure the search for witnesses, beside FAISS and scikit-learn, and compare the answers.

    Example: `maskwitness bench join --patches 3000,6000 --hard 3000`
    """
    _contest("join", output, json_, {
        "sizes": _sizes(patches), "hard": hard, "epsilon": epsilon, "k": k, "threads": threads,
        "device": device, "repeats": repeats, "scans": scans, "seed": seed, "limits": peer_limit,
    })  # fmt: skip


@app.command()
def nearest(
    patches: Patches = "6250,12500,25000",
    k: Annotated[int, typer.Option("--k", min=1, help="Nearest patches of other scans.")] = 32,
    threads: Threads = None,
    device: OnDevice = "cpu",
    repeats: Repeats = 1,
    scans: Scans = 220,
    seed: Seed = 1,
    peer_limit: PeerLimit = None,
    output: Output = None,
    json_: Json = False,
) -> None:
    """Measure the search for the nearest in a bank of shifted patches, beside FAISS.

    Example: `maskwitness bench nearest --patches 3000,6000`
    """
    _contest("nearest", output, json_, {
        "sizes": _sizes(patches), "k": k, "threads": threads, "device": device,
        "repeats": repeats, "scans": scans, "seed": seed, "limits": peer_limit,
    })  # fmt: skip


def _contest(name: str, output: Path | None, as_json: bool, values: dict[str, Any]) -> None:
    from maskwitness.bench import join as contests
    from maskwitness.bench import tables

    run = {"join": contests.bench_join, "nearest": contests.bench_nearest}[name]
    known = {"join": contests.JOIN, "nearest": contests.NEAREST}[name]
    if values["device"] not in known:
        message = f"--device {values['device']!r}: it must be {' or '.join(known)}"
        raise ConfigError(message)
    limits = _limits(values["limits"], known[values["device"]][1:])
    contest = contests.Contest(**{**values, "limits": limits})
    if output is not None:
        tables.free_folder(output)
    result = run(contest, _tell)
    if output is not None:
        result["notes"].append(tables.write_contest(output, result))
    answer(as_json, result, lambda: tables.show_contest(result))


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(sorted({_count("--patches", part) for part in text.split(",")}))


def _limits(text: str | None, peers: tuple[str, ...]) -> dict[str, int]:
    limits = {}
    for part in text.split(",") if text is not None else ():
        name, mark, count = part.rpartition("=")
        if mark and name not in peers:
            message = f"--peer-limit {text!r}: there is no {name!r}; there is {', '.join(peers)}"
            raise ConfigError(message)
        for peer in [name] if mark else peers:
            limits[peer] = _count("--peer-limit", count)
    return limits


def _count(option: str, text: str) -> int:
    if text.strip().isdecimal():
        return int(text)
    message = f"{option} {text!r}: numbers of patches are whole numbers, like 12500,25000"
    raise ConfigError(message)


def _tell(text: str) -> None:
    # Only to somebody who watches.
    if sys.stderr.isatty():
        typer.echo(text, err=True)

"""What comes out of a contest: tables on the terminal; join.json and a picture in a folder."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from maskwitness.errors import InputError
from maskwitness.io.files import write_whole

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # told apart by colour-blind eyes too
MARKS = "osD^"


def free_folder(folder: Path) -> None:
    """Make a folder for results; one that holds anything is refused."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        message = f"{folder} exists and is not an empty folder; choose another place"
        raise InputError(message)
    folder.mkdir(parents=True, exist_ok=True)


def show_contest(result: dict[str, Any]) -> None:
    """Print a table for each kind of patches, how times grow, and what the numbers mean."""
    console = Console()
    console.print(result["title"], highlight=False, soft_wrap=True)
    for kind in dict.fromkeys(row["kind"] for row in result["rows"]):
        console.print(_table(kind, result))
    for line in _not_run(result):
        console.print(line, highlight=False, soft_wrap=True, style="yellow")
    if result["growth"]:
        grown = [f"{result['labels'][name]} {x:.2f}" for name, x in result["growth"].items()]
        console.print(f"growth, x of time ~ patches^x: {', '.join(grown)}", highlight=False)
    for line in result["notes"]:
        console.print(line, highlight=False, soft_wrap=True)


def write_contest(folder: Path, result: dict[str, Any]) -> str:
    """Write the result and a picture of it; return what the user should know of that."""
    name = result["bench"]
    text = json.dumps(result, ensure_ascii=False, indent=2)
    write_whole(folder / f"{name}.json", text.encode())
    if find_spec("matplotlib") is None:
        return f"no picture was drawn in {folder}: matplotlib is not installed"
    _draw(folder / name, result)
    return f"{name}.json, {name}.svg and {name}.png are in {folder}"


def _table(kind: str, result: dict[str, Any]) -> Table:
    on_device = result["device"] == "cuda"
    table = Table(title=kind, title_justify="left")
    for name in ("patches", "by", "time (s)", "× ours", "pairs", "same witnesses", "peak MiB"):
        left = name in ("by", "same witnesses")
        table.add_column(name, justify="left" if left else "right", no_wrap=name == "by")
    if on_device:
        table.add_column("on device", justify="right")
    size = 0
    for row in result["rows"]:
        if row["kind"] != kind:
            continue
        new = row["patches"] != size
        size = row["patches"]
        if new and table.row_count:
            table.add_section()
        cells = _cells(row) + ([_whole(row.get("device_mib"))] if on_device else [])
        table.add_row(f"{size:,}" if new else "", result["labels"][row["contender"]], *cells)
    return table


def _not_run(result: dict[str, Any]) -> list[str]:
    sizes: dict[tuple[str, str], list[str]] = {}
    for row in result["rows"]:
        if "skipped" in row:
            where = sizes.setdefault((row["contender"], row["skipped"]), [])
            where.append(f"{row['kind']} {row['patches']:,}")
    return [
        f"not run: {result['labels'][contender]} ({', '.join(where)}): {reason}"
        for (contender, reason), where in sizes.items()
    ]


def _cells(row: dict[str, Any]) -> list[str]:
    if "skipped" in row:
        return ["–", "", "", "", ""]
    ratio = row.get("ratio")
    same = {True: "yes", False: "NO", None: "?"}[row.get("same")]
    return [
        f"{row['seconds']:.2f}",
        "" if ratio is None else f"{ratio:.1f}",
        f"{row['pairs']:,}",
        same,
        _whole(row["peak_mib"]),
    ]


def _whole(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


def _draw(path: Path, result: dict[str, Any]) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    figure = Figure(figsize=(7, 5), layout="constrained")
    axes: Any = figure.add_subplot()
    for number, (name, label) in enumerate(result["labels"].items()):
        colour, mark = COLOURS[number % len(COLOURS)], MARKS[number % len(MARKS)]
        for kind, style in (("phantom", "-"), ("hard", "none")):
            at = [
                (row["patches"], row["seconds"])
                for row in result["rows"]
                if (row["contender"], row["kind"]) == (name, kind) and "seconds" in row
            ]
            if at:
                hollow = {"markerfacecolor": "white"} if kind == "hard" else {}
                axes.plot(
                    *zip(*sorted(at), strict=True), linestyle=style, color=colour, marker=mark,
                    label=label if kind == "phantom" else f"{label}, hard", **hollow,
                )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="patches", ylabel="time (s)")
    axes.set_title(result["title"].replace("; ", "\n", 1), fontsize="medium")
    sizes = sorted({row["patches"] for row in result["rows"]})
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(fontsize="small")
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=150)

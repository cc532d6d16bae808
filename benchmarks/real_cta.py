"""A real CTA, audited: how much is scored, what is found, and does it point to where masks differ?

    python benchmarks/real_cta.py ../shared/real --output real --epsilon 0.001 0.01 0.02

The scan is TotalSegmentator's test CTA (1.5 mm, a dissected, stented aorta) with one mask for each
vessel, all drawn by networks. Two different networks drew the aorta. Where those two disagree, at
least one of them is wrong: a point counts as bad where, inside a ball around it, more than a
quarter of the voxels of either mask are in one of them only.
"""

import argparse
from pathlib import Path

import numpy as np
from scipy.spatial import cKDTree

import maskwitness
from maskwitness.geometry import to_world
from maskwitness.io.volumes import read_volume
from maskwitness.judge import auroc
from maskwitness.run import Run

VESSELS = (
    "aorta",
    "organ_aorta_T264",
    "brachiocephalic_trunk",
    "common_carotid_artery_left",
    "subclavian_artery_left",
    "superior_mesenteric_artery",
    "celiac_trunk",
)
TWO_OPINIONS = VESSELS[:2]
PATCH_MM = 60.0  # the aorta is up to 39 mm wide
BALL_MM = 5.0
BAD = 0.25


def write_cases(real: Path, place: Path) -> None:
    """Write the table of images and masks."""
    chest, lung = (real.absolute() / f"totalseg_{n}_cta" for n in ("aorta", "pulmonary"))
    rows = [(chest, name) for name in VESSELS] + [(lung, "pulmonary_artery")]
    lines = [f"{folder}/ct_cropped.nii.gz,{folder}/{name}.nii.gz,{name}" for folder, name in rows]
    place.write_text("\n".join(["image,mask,name", *lines]) + "\n", encoding="utf-8")


def disagreement(real: Path, points_mm: np.ndarray) -> np.ndarray:
    """Return how much the two aorta masks differ around each point, 0 to 1."""
    one, other = (read_volume(real / "totalseg_aorta_cta" / f"{n}.nii.gz") for n in TWO_OPINIONS)
    a, b = one.data != 0, other.data != 0
    either = np.argwhere(a | b)
    differs = (a ^ b)[tuple(either.T)]
    places = to_world(either.astype(float), one.affine)
    near, wrong = (
        cKDTree(p).query_ball_point(points_mm, BALL_MM, return_length=True)
        for p in (places, places[differs])
    )
    return wrong / np.maximum(near, 1)


def report(run: Run, real: Path) -> None:
    """Print a run's counts, its worst places, and how it ranks the disputed points."""
    s = run.summary
    print(
        f"\nepsilon {run.config.join.epsilon:g}: {s['patches']} points, {s['pairs']} pairs, "
        f"{100 * s['scored'] / s['patches']:.1f} % scored, {s['findings']} findings"
    )
    for row in run.findings.slice(0, 5).to_pylist():
        place = ", ".join(f"{row[f'centre_{axis}_mm']:.1f}" for axis in "xyz")
        print(f"  {row['scan']} at ({place}): {row['worst_score']:.1f}, {row['kind']}")
    scores = run.scores
    names = np.array(scores["scan"].to_pylist())
    points_mm = np.stack([scores[f"{axis}_mm"].to_numpy() for axis in "xyz"], axis=1)
    score = scores["score"].to_numpy().astype(float)
    for name in TWO_OPINIONS:
        own = names == name
        bad = disagreement(real, points_mm[own]) > BAD
        value = auroc(bad, -np.nan_to_num(score[own]))
        print(f"  {name}: {bad.sum()} of {own.sum()} points disputed, AUROC {value:.2f}")


def main() -> None:
    """Audit at every epsilon asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("real", type=Path)
    parser.add_argument("--output", type=Path, default=Path("real"))
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.001, 0.01, 0.02])
    wanted = parser.parse_args()
    wanted.output.mkdir(parents=True, exist_ok=True)
    write_cases(wanted.real, wanted.output / "cases.csv")
    for epsilon in wanted.epsilon:
        settings = {
            "patches": {"extent_mm": PATCH_MM},
            "quality": {"reach_mm": PATCH_MM / 2},
            "join": {"epsilon": epsilon},
        }
        run = maskwitness.audit(
            wanted.output / "cases.csv", wanted.output / f"run-{epsilon:g}", config=settings
        )
        report(run, wanted.real)


if __name__ == "__main__":
    main()

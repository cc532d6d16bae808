"""The heart and what lies around it: chambers, great vessels, lungs, bones, as simple shapes.

World axes are RAS+: x to the patient's right, y to the front, z to the head. The origin is the
middle of the heart. Shapes are listed in the order in which they are painted, later over earlier.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy.spatial.transform import Rotation

from maskwitness.phantom.records import Tubes

BLEND_MM = 3.5  # how round the bottom of a groove between two chambers is

# The chambers that coronary arteries run on, in the order of ``Heart``.
LEFT_VENTRICLE, RIGHT_VENTRICLE, LEFT_ATRIUM, RIGHT_ATRIUM, AORTIC_ROOT, OUTFLOW = range(6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ellipsoid:
    """A solid ellipsoid; ``form`` maps the offset from its centre to the unit sphere."""

    centre_mm: Float64[np.ndarray, " 3"]
    form: Float64[np.ndarray, "3 3"]

    def grown(self, by_mm: float) -> "Ellipsoid":
        """Return the ellipsoid with every half-axis longer by ``by_mm``."""
        turn, inverse_axes, right = np.linalg.svd(self.form)
        axes = np.maximum(1.0 / inverse_axes + by_mm, 0.5)
        return Ellipsoid(centre_mm=self.centre_mm, form=(turn / axes) @ right)

    def moved(self, by_mm: Float64[np.ndarray, " 3"]) -> "Ellipsoid":
        """Return the ellipsoid at another place."""
        return Ellipsoid(centre_mm=self.centre_mm + by_mm, form=self.form)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heart:
    """The six bodies whose blended surface carries the coronary arteries."""

    bodies: tuple[Ellipsoid, ...]
    apex_mm: Float64[np.ndarray, " 3"]
    turn: Float64[np.ndarray, "3 3"]  # from the textbook heart to this patient's
    scale: float

    @property
    def centres(self) -> Float64[np.ndarray, "ellipsoids 3"]:
        """All centres, as the kernels take them."""
        return np.array([body.centre_mm for body in self.bodies])

    @property
    def forms(self) -> Float64[np.ndarray, "ellipsoids 3 3"]:
        """All forms, as the kernels take them."""
        return np.array([body.form for body in self.bodies])

    def place(self, x: float, y: float, z: float) -> Float64[np.ndarray, " 3"]:
        """Return where a place of the textbook heart lies in this one."""
        return self.scale * (self.turn @ np.array([x, y, z]))


def ellipsoid(
    centre_mm: Float64[np.ndarray, " 3"],
    half_mm: tuple[float, float, float],
    axes: Float64[np.ndarray, "3 3"] | None = None,
) -> Ellipsoid:
    """Return an ellipsoid from its half-axes along the rows of ``axes`` (default: the world's)."""
    rows = np.eye(3) if axes is None else axes
    return Ellipsoid(
        centre_mm=np.array(centre_mm, dtype=np.float64), form=rows / np.array(half_mm)[:, None]
    )


def wall_towards(body: Ellipsoid, way: Float64[np.ndarray, " 3"]) -> Float64[np.ndarray, " 3"]:
    """Return the place on the surface of a body in one direction from its centre."""
    return body.centre_mm + way / np.linalg.norm(body.form @ way)


def merged(parts: list[Tubes]) -> Tubes:
    """Return several tubes as one record, to be painted at once."""
    lengths = [len(part.radius_mm) for part in parts]
    return Tubes(
        points_mm=np.concatenate([part.points_mm for part in parts]),
        radius_mm=np.concatenate([part.radius_mm for part in parts]),
        branch=np.repeat(np.arange(len(parts)), lengths).astype(np.int32),
    )


def build_heart(rng: np.random.Generator) -> Heart:
    """Draw one patient's heart: the textbook's, turned, scaled, each chamber a little different."""
    turn = Rotation.from_rotvec(rng.normal(0.0, math.radians(7.0), 3)).as_matrix()
    scale = rng.uniform(0.92, 1.06)
    long = np.array([-0.64, 0.50, -0.58])
    long /= np.linalg.norm(long)
    side = np.cross(long, [0.0, 0.0, 1.0])
    side /= np.linalg.norm(side)
    axes = np.array([long, side, np.cross(long, side)])
    plan = [
        ((-22.0, -4.0, -14.0), (46.0, 31.0, 31.0), axes),
        ((8.0, 22.0, -14.0), (44.0, 25.0, 29.0), axes),
        ((4.0, -34.0, 20.0), (30.0, 19.0, 21.0), None),
        ((38.0, -4.0, 4.0), (22.0, 23.0, 28.0), None),
        ((8.0, 2.0, 44.0), (17.0, 17.0, 36.0), None),
        ((-13.0, 21.0, 31.0), (15.0, 15.0, 29.0), None),
    ]
    bodies = []
    for centre, half, rows in plan:
        place = scale * (turn @ (np.array(centre) + rng.normal(0.0, 1.2, 3)))
        size = scale * np.array(half) * rng.uniform(0.95, 1.05, 3)
        own = np.eye(3) if rows is None else rows
        bodies.append(ellipsoid(place, (size[0], size[1], size[2]), own @ turn.T))
    left = bodies[LEFT_VENTRICLE]
    apex = left.centre_mm + np.linalg.inv(left.form) @ np.array([1.0, 0.0, 0.0])
    return Heart(bodies=tuple(bodies), apex_mm=apex, turn=turn, scale=scale)


def tube(points: list[Float64[np.ndarray, " 3"]], radii: list[float]) -> Tubes:
    """Return one smooth tube through a few places: a Catmull-Rom curve."""
    knots = np.array([points[0], *points, points[-1]])
    wide = np.array([radii[0], *radii, radii[-1]])
    found, found_radii = [], []
    for n in range(1, len(knots) - 2):
        apart = max(2.5, 0.4 * float(wide[n]))
        steps = max(2, math.ceil(float(np.linalg.norm(knots[n + 1] - knots[n])) / apart))
        for t in np.arange(steps) / steps:
            weights = 0.5 * np.array(
                [
                    -t + 2 * t**2 - t**3,
                    2 - 5 * t**2 + 3 * t**3,
                    t + 4 * t**2 - 3 * t**3,
                    t**3 - t**2,
                ]
            )
            found.append(weights @ knots[n - 1 : n + 3])
            found_radii.append(wide[n] + t * (wide[n + 1] - wide[n]))
    found.append(knots[-1])
    found_radii.append(wide[-1])
    return Tubes(
        points_mm=np.array(found),
        radius_mm=np.array(found_radii, dtype=np.float64),
        branch=np.zeros(len(found), dtype=np.int32),
    )


def great_vessels(heart: Heart) -> dict[str, Tubes]:
    """Return the vessels that enter and leave the heart, and the aorta on its way down."""
    at = heart.place
    lung_veins = [
        tube(
            [at(20.0, -40.0, 27.0), at(45.0, -46.0, 32.0), at(75.0, -50.0, 40.0)], [8.0, 6.0, 4.0]
        ),
        tube([at(22.0, -42.0, 12.0), at(48.0, -55.0, 4.0), at(75.0, -62.0, -4.0)], [7.5, 6.0, 4.0]),
        tube(
            [at(-16.0, -42.0, 28.0), at(-40.0, -52.0, 36.0), at(-65.0, -58.0, 42.0)],
            [8.0, 6.0, 4.0],
        ),
        tube(
            [at(-16.0, -44.0, 14.0), at(-40.0, -60.0, 4.0), at(-65.0, -68.0, -6.0)], [7.5, 6.0, 4.0]
        ),
    ]
    return {
        "aorta": tube(
            [at(6.0, 0.0, 20.0), at(9.0, 4.0, 40.0), at(12.0, 4.0, 62.0), at(8.0, -8.0, 95.0)],
            [14.0, 14.5, 15.0, 15.0],
        ),
        "outflow": tube(
            [
                at(-14.0, 25.0, 22.0),
                at(-13.0, 12.0, 44.0),
                at(-10.0, -8.0, 60.0),
                at(18.0, -22.0, 64.0),
            ],
            [13.0, 13.0, 12.0, 9.0],
        ),
        "left_pulmonary": tube(
            [at(-11.0, 2.0, 54.0), at(-28.0, -22.0, 60.0), at(-55.0, -40.0, 58.0)], [11.0, 9.0, 6.0]
        ),
        "cava": tube(
            [at(36.0, 2.0, 20.0), at(33.0, 0.0, 50.0), at(31.0, 4.0, 95.0)], [9.5, 9.0, 9.0]
        ),
        "cava_below": tube(
            [at(34.0, -14.0, -14.0), at(30.0, -20.0, -45.0), at(28.0, -22.0, -80.0)],
            [12.0, 12.0, 13.0],
        ),
        "down": tube(
            [at(-24.0, -66.0, 95.0), at(-23.0, -64.0, 20.0), at(-16.0, -66.0, -90.0)],
            [12.0, 11.5, 11.0],
        ),
        "veins": merged(lung_veins),
        "oesophagus": tube(
            [at(-8.0, -58.0, 95.0), at(-8.0, -60.0, 20.0), at(-14.0, -56.0, -90.0)], [7.0, 7.0, 7.0]
        ),
    }


def ribs() -> Tubes:
    """Return the ribs, as arcs round the chest."""
    found = []
    for z in range(-84, 100, 24):
        for side in (-1.0, 1.0):
            arc = [
                np.array([side * 126 * math.sin(a), -8 + 88 * math.cos(a), z - 14 * math.cos(a)])
                for a in np.linspace(0.15, 2.85, 9)
            ]
            found.append(tube(arc, [5.0] * len(arc)))
    return merged(found)


def backbone(heart: Heart) -> Tubes:
    """Return the bodies of the vertebrae as one column."""
    column = [(0.0, -104.0, 100.0), (2.0, -100.0, 0.0), (0.0, -98.0, -100.0)]
    return tube([heart.turn @ np.array(place) for place in column], [21.0] * 3)


def lung_vessels(heart: Heart, rng: np.random.Generator, count: int) -> Tubes:
    """Return short bending tubes that run outward through the lungs, from thick to thin."""
    points, radii, branch = [], [], []
    for n in range(count):
        side = rng.choice([-1.0, 1.0])
        here = heart.place(float(side * 55.0), -25.0, 25.0) + rng.normal(0.0, (12.0, 22.0, 26.0))
        away = here - heart.place(0.0, 0.0, 10.0) + rng.normal(0.0, 25.0, 3)
        heading = away / np.linalg.norm(away)
        radius = float(rng.choice([0.8, 1.2, 2.0, 3.2], p=[0.4, 0.3, 0.2, 0.1]))
        steps = int(rng.integers(8, 24))
        for s in range(steps):
            points.append(here)
            radii.append(max(radius * (1 - s / steps), 0.4))
            branch.append(n)
            heading = heading + rng.normal(0.0, 0.17, 3)
            heading /= np.linalg.norm(heading)
            here = here + 2.5 * heading
    return Tubes(
        points_mm=np.array(points),
        radius_mm=np.array(radii, dtype=np.float64),
        branch=np.array(branch, dtype=np.int32),
    )

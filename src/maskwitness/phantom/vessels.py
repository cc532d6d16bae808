"""Coronary arteries and the veins beside them, grown over the surface of the heart.

The three main arteries look for the groove between two chambers and follow it, as they do in life;
side branches leave them at an angle and wander over the ventricles, bending, thinning, branching
again until they are too thin to see. Veins accompany arteries, touch them and cross them.
"""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float64, Int32
from scipy.ndimage import gaussian_filter1d

from maskwitness.kernels import phantom_walk
from maskwitness.phantom import anatomy
from maskwitness.phantom.anatomy import BLEND_MM, Heart
from maskwitness.phantom.records import Arteries, Tubes

STEP_MM = 0.4
THINNEST_MM = 0.28
NO_GROOVE = (-1, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The plan of one branch: where it starts, where it wants to go, how wide it is."""

    start_mm: Float64[np.ndarray, " 3"]
    towards: Float64[np.ndarray, " 3"]
    length_mm: float
    radius_mm: float
    groove: tuple[int, int] = NO_GROOVE
    target_mm: Float64[np.ndarray, " 3"] = field(default_factory=lambda: np.zeros(3))
    pull: float = 0.0
    wander_rad: float = 0.03  # how much a step of 0.4 mm bends
    level_mm: float = 1.2  # of the vessel's lower edge above the muscle


@dataclass(slots=True)
class Growth:
    """Branches as they are grown; the only mutable record, because a tree grows."""

    heart: Heart
    rng: np.random.Generator
    points: list[Float64[np.ndarray, "points 3"]] = field(default_factory=list)
    outward: list[Float64[np.ndarray, "points 3"]] = field(default_factory=list)
    radius: list[Float64[np.ndarray, " points"]] = field(default_factory=list)
    parent: list[tuple[int, int]] = field(default_factory=list)  # branch, place on it

    def add(self, course: Course, parent: tuple[int, int] = (-1, -1)) -> int:
        """Walk one branch and return its number."""
        points, outward = walk(self.heart, course, self.rng)
        self.points.append(points)
        self.outward.append(outward)
        self.radius.append(_taper(course.radius_mm, len(points), self.rng))
        self.parent.append(parent)
        return len(self.points) - 1

    def heading(self, branch: int, at: int) -> Float64[np.ndarray, " 3"]:
        """Return the direction of a branch at one of its points."""
        points = self.points[branch]
        return points[min(at + 2, len(points) - 1)] - points[max(at - 2, 0)]


def walk(
    heart: Heart, course: Course, rng: np.random.Generator
) -> tuple[Float64[np.ndarray, "points 3"], Float64[np.ndarray, "points 3"]]:
    """Return the points of one branch and the surface normals below them."""
    count = max(6, round(course.length_mm / STEP_MM))
    points, outward = np.zeros((count, 3)), np.zeros((count, 3))
    rise = _smooth(rng, count, 10.0) * 0.7
    level = np.maximum(course.level_mm + 0.6 * course.radius_mm + rise, -0.5)
    if course.radius_mm > 1.0 and count > 150 and rng.random() < 0.3:  # a muscle bridge
        middle = rng.uniform(0.35, 0.7) * count
        level -= 4.0 * np.exp(-0.5 * ((np.arange(count) - middle) / 14.0) ** 2)
    phantom_walk.walk_into(
        points,
        outward,
        course.start_mm,
        course.towards / np.linalg.norm(course.towards),
        _smooth(rng, count, 5.0) * course.wander_rad,
        level,
        course.groove,
        course.target_mm,
        course.pull,
        STEP_MM,
        heart.centres,
        heart.forms,
        BLEND_MM,
    )
    return points, outward


def grow_arteries(heart: Heart, rng: np.random.Generator, cutoff_mm: float) -> Arteries:
    """Return the left and the right coronary tree, without disease."""
    growth = Growth(heart=heart, rng=rng)
    mains = _grow_left(growth) + _grow_right(growth)
    for main in mains:
        _sprout(growth, main, depth=0)
    lengths = [len(points) for points in growth.points]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    radius = np.concatenate(growth.radius)
    branch = np.repeat(np.arange(len(lengths)), lengths).astype(np.int32)
    parent = np.array([owner for owner, _ in growth.parent], dtype=np.int32)
    springs = np.array(
        [-1 if owner < 0 else starts[owner] + at for owner, at in growth.parent], dtype=np.int32
    )
    wall = radius + 0.3
    for trunk in np.flatnonzero(parent < 0):  # an ostium has no wall inside the aorta
        wall[starts[trunk] : starts[trunk] + 8] = radius[starts[trunk] : starts[trunk] + 8]
    fade = np.concatenate([np.linspace(0.0, 1.0, n) for n in lengths])
    tubes = Tubes(points_mm=np.concatenate(growth.points), radius_mm=radius, branch=branch)
    return Arteries(
        tubes=tubes,
        parent=parent,
        parent_point=springs,
        wall_mm=wall,
        strength=1.0 - 0.18 * fade * np.clip(1.6 - radius, 0.0, 1.0),
        motion_mm=np.zeros((len(radius), 3)),
        annotated=_annotated(branch, radius, parent, springs, cutoff_mm),
    )


def _grow_left(growth: Growth) -> list[int]:
    heart, rng = growth.heart, growth.rng
    crown = heart.place(-24.0, 4.0, 17.0)
    root = heart.bodies[anatomy.AORTIC_ROOT]
    start = anatomy.wall_towards(root, heart.turn @ np.array([-15.0, 1.0, -18.0]))
    left = growth.add(
        Course(
            start_mm=start,
            towards=crown - start,
            length_mm=rng.uniform(19, 25),
            radius_mm=rng.uniform(2.1, 2.5),
            target_mm=crown,
            pull=0.2,
            wander_rad=0.01,
        )
    )
    growth.radius[left] = np.maximum(growth.radius[left], growth.radius[left][0] * 0.88)
    end = len(growth.points[left]) - 1
    place, wide = growth.points[left][end], growth.radius[left][end]
    front = Course(
        start_mm=place,
        towards=heart.turn @ np.array([-0.5, 1.0, -0.5]),
        length_mm=rng.uniform(105, 130),
        radius_mm=0.88 * wide,
        groove=(anatomy.RIGHT_VENTRICLE, anatomy.LEFT_VENTRICLE),
        target_mm=heart.apex_mm,
        pull=0.015,
    )
    round_ = Course(
        start_mm=place,
        towards=heart.turn @ np.array([-1.0, -0.6, -0.3]),
        length_mm=rng.uniform(60, 95),
        radius_mm=rng.uniform(0.7, 0.85) * wide,
        groove=(anatomy.LEFT_ATRIUM, anatomy.LEFT_VENTRICLE),
    )
    mains = [growth.add(front, (left, end)), growth.add(round_, (left, end))]
    if rng.random() < 0.4:  # a third branch between the two
        between = Course(
            start_mm=place,
            towards=heart.turn @ np.array([-1.0, 0.3, -0.8]),
            length_mm=rng.uniform(40, 65),
            radius_mm=rng.uniform(0.5, 0.65) * wide,
            target_mm=heart.apex_mm,
            pull=0.01,
        )
        mains.append(growth.add(between, (left, end)))
    return mains


def _grow_right(growth: Growth) -> list[int]:
    heart, rng = growth.heart, growth.rng
    root = heart.bodies[anatomy.AORTIC_ROOT]
    start = anatomy.wall_towards(root, heart.turn @ np.array([10.0, 12.0, -18.0]))
    groove = (anatomy.RIGHT_ATRIUM, anatomy.RIGHT_VENTRICLE)
    course = Course(
        start_mm=start,
        towards=heart.turn @ np.array([0.8, 0.6, -0.5]),
        length_mm=rng.uniform(120, 150),
        radius_mm=rng.uniform(1.7, 2.2),
        groove=groove,
        wander_rad=0.035,
    )
    right = growth.add(course)
    at = int(rng.uniform(0.68, 0.8) * len(growth.points[right]))
    down = Course(
        start_mm=growth.points[right][at],
        towards=heart.apex_mm - growth.points[right][at],
        length_mm=rng.uniform(45, 70),
        radius_mm=0.75 * float(growth.radius[right][at]),
        groove=(anatomy.RIGHT_VENTRICLE, anatomy.LEFT_VENTRICLE),
        target_mm=heart.apex_mm,
        pull=0.01,
    )
    return [right, growth.add(down, (right, at))]


def _sprout(growth: Growth, branch: int, depth: int) -> None:
    """Grow side branches along a branch, and theirs."""
    rng = growth.rng
    points = growth.points[branch]
    apart_mm = (9.0, 15.0) if depth == 0 else (10.0, 20.0)
    at = int(rng.uniform(*apart_mm) / STEP_MM)
    side = rng.choice([-1.0, 1.0])
    while at < len(points) - 15:
        wide = float(growth.radius[branch][at])
        child = wide * rng.uniform(0.55, 0.85)
        if child > 0.42:
            up = growth.outward[branch][at]
            ahead = growth.heading(branch, at)
            ahead /= np.linalg.norm(ahead)
            angle = rng.uniform(0.6, 1.2)
            course = Course(
                start_mm=points[at],
                towards=np.cos(angle) * ahead + side * np.sin(angle) * np.cross(up, ahead),
                length_mm=float((14.0 + 26.0 * child) * rng.uniform(0.7, 1.4)),
                radius_mm=child,
                target_mm=growth.heart.apex_mm,
                pull=0.008,
                wander_rad=rng.uniform(0.025, 0.05),
                level_mm=rng.uniform(0.2, 1.8),
            )
            number = growth.add(course, (branch, at))
            if depth < 2:
                _sprout(growth, number, depth + 1)
        side = -side if rng.random() < 0.7 else side
        at += int(rng.uniform(*apart_mm) / STEP_MM)


def grow_veins(arteries: Arteries, heart: Heart, rng: np.random.Generator) -> Tubes:
    """Return veins that run along the larger arteries, and some that cross at random."""
    found: list[tuple[Float64[np.ndarray, "points 3"], Float64[np.ndarray, " points"]]] = []
    tubes = arteries.tubes
    for branch in range(len(arteries.parent)):
        at = np.flatnonzero(tubes.branch == branch)
        if len(at) > 70 and rng.random() < (0.95 if tubes.radius_mm[at[0]] > 1.2 else 0.5):
            found.append(_beside(tubes.points_mm[at], tubes.radius_mm[at], heart, rng))
    for _ in range(14):
        start = tubes.points_mm[rng.integers(len(tubes.points_mm))] + rng.normal(0.0, 5.0, 3)
        course = Course(
            start_mm=start,
            towards=rng.normal(size=3),
            length_mm=rng.uniform(20.0, 60.0),
            radius_mm=rng.uniform(0.5, 1.3),
            level_mm=rng.uniform(0.5, 3.5),
        )
        points, _ = walk(heart, course, rng)
        found.append((points, course.radius_mm * np.linspace(1.1, 0.7, len(points))))
    lengths = [len(points) for points, _ in found]
    return Tubes(
        points_mm=np.concatenate([points for points, _ in found]),
        radius_mm=np.concatenate([radius for _, radius in found]),
        branch=np.repeat(np.arange(len(found)), lengths).astype(np.int32),
    )


def _beside(
    points: Float64[np.ndarray, "points 3"],
    radius: Float64[np.ndarray, " points"],
    heart: Heart,
    rng: np.random.Generator,
) -> tuple[Float64[np.ndarray, "points 3"], Float64[np.ndarray, " points"]]:
    """Return a vein beside an artery: now apart, now touching, sometimes stepping over it."""
    count = len(points)
    inside = heart.place(-5.0, 5.0, -5.0)
    up = points - inside
    ahead = np.gradient(points, axis=0)
    ahead /= np.linalg.norm(ahead, axis=1, keepdims=True)
    up -= (up * ahead).sum(axis=1, keepdims=True) * ahead
    up /= np.linalg.norm(up, axis=1, keepdims=True)
    aside = np.cross(up, ahead)
    wide = rng.uniform(0.75, 1.0) * np.clip(radius[0], 0.8, 2.2) * np.linspace(1.0, 0.75, count)
    gap = np.maximum(0.7 + 1.1 * _smooth(rng, count, 8.0), -0.25)
    turn = np.deg2rad(25.0) * _smooth(rng, count, 12.0) + np.deg2rad(15.0)
    if rng.random() < 0.6:
        cross = rng.uniform(0.2, 0.8) * count
        turn += np.deg2rad(150.0) / (1.0 + np.exp((cross - np.arange(count)) / 6.0))
    if rng.random() < 0.5:
        aside = -aside
    reach = (radius + wide + gap)[:, None]
    path = points + reach * (np.cos(turn)[:, None] * aside + np.sin(turn)[:, None] * up)
    return gaussian_filter1d(path, 2.0, axis=0, mode="nearest"), wide


def _taper(first_mm: float, count: int, rng: np.random.Generator) -> Float64[np.ndarray, " points"]:
    """Return radii from the first to the thinnest one, with slow bulges of some per cent."""
    left = 1.0 - np.arange(count) / count
    radius = THINNEST_MM + (first_mm - THINNEST_MM) * left**0.55
    return np.maximum(radius * (1.0 + 0.05 * _smooth(rng, count, 6.0)), 0.22)


def _smooth(
    rng: np.random.Generator, count: int, sigma_steps: float
) -> Float64[np.ndarray, " points"]:
    """Return a random function of unit variance that varies over some steps."""
    margin = int(4 * sigma_steps)
    white = rng.normal(size=count + 2 * margin)
    smooth = gaussian_filter1d(white, sigma_steps)[margin : margin + count]
    return smooth * np.sqrt(2.0 * np.sqrt(np.pi) * sigma_steps)


def _annotated(
    branch: Int32[np.ndarray, " points"],
    radius: Float64[np.ndarray, " points"],
    parent: Int32[np.ndarray, " branches"],
    parent_point: Int32[np.ndarray, " branches"],
    cutoff_mm: float,
) -> Bool[np.ndarray, " points"]:
    """From the root outward, each branch until it first falls below the cutoff."""
    keep = np.zeros(len(branch), dtype=bool)
    for number in range(len(parent)):  # parents come before their children
        at = np.flatnonzero(branch == number)
        if parent[number] >= 0 and not keep[parent_point[number]]:
            continue
        thin = np.flatnonzero(radius[at] < cutoff_mm)
        stop = int(thin[0]) if len(thin) else len(at)
        if stop * STEP_MM >= 4.0:
            keep[at[:stop]] = True
    return keep

"""Every setting of an audit: one frozen record a step, presets, TOML, and a digest.

A setting's unit is in its name. ``paper`` is what the paper says, to the letter. A key that does
not exist is refused with the nearest one that does; nothing is ever read from the environment.
"""

import dataclasses
import difflib
import hashlib
import json
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from maskwitness.errors import ConfigError

Testify = Literal["any", "other_stretch", "other_scan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """What of the files is looked at."""

    labels: tuple[int, ...] = ()  # which label values are vessel; none given: every non-zero one


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchSettings:
    """Method M6: the size of a patch. It must cover the widest vessel."""

    extent_mm: float = 3.0  # the paper's, for coronary arteries
    size: int = 24  # samples along each side: 0.125 mm apart at 3 mm

    @property
    def step_mm(self) -> float:
        """Distance between two samples."""
        return self.extent_mm / self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSettings:
    """Methods M9 and M10: who is a witness."""

    epsilon: float = 1e-3  # MSE of images in [0, 1]: PSNR 30 dB, no visible difference
    k: int = 2047  # nearest witnesses kept; 0: all of them
    testify: Testify = "any"
    stretch_mm: float = 5.0  # for other_stretch: how near on a branch is too near
    memory_mb: int = 4096  # what the join may hold at once; the result does not depend on it


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualSettings:
    """Methods M12 and M13: the baseline of mask disagreement."""

    bins: int = 100  # K of the paper
    min_pairs: int = 30  # in a bin with fewer, mean and deviation say nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class QualitySettings:
    """Method M16: how far from the centreline a score reaches."""

    reach_mm: float = 1.5  # λ: half the paper's patch extent


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingSettings:
    """Which points become places to look at."""

    threshold: float = -3.0  # a point that scores lower is bad: the paper's extreme errors
    worst_share: float = 0.02  # of the scored points, the worst: looked at in any case, because in
    # a small data set the usual disagreement is large and no residual can get to -3
    bridge_mm: float = 2.0  # bad points on a branch that are this near belong together


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of an audit."""

    preset: str = "paper"
    data: DataSettings = field(default_factory=DataSettings)
    patches: PatchSettings = field(default_factory=PatchSettings)
    join: JoinSettings = field(default_factory=JoinSettings)
    residuals: ResidualSettings = field(default_factory=ResidualSettings)
    quality: QualitySettings = field(default_factory=QualitySettings)
    findings: FindingSettings = field(default_factory=FindingSettings)

    def digest(self) -> str:
        """Return a name for exactly these settings: the SHA-256 of their sorted JSON."""
        return digest_of(as_dict(self))


PRESETS: Mapping[str, Config] = {"paper": Config()}


def preset(name: str) -> Config:
    """Return the settings known under ``name``."""
    if name not in PRESETS:
        message = f"there is no preset {name!r}; there is {_listed(PRESETS)}"
        raise ConfigError(message)
    return PRESETS[name]


def as_dict(config: Config) -> dict[str, Any]:
    """Return the settings as plain tables, as they stand in TOML and JSON."""
    return json.loads(json.dumps(dataclasses.asdict(config)))  # tuples become lists


def from_dict(tables: Mapping[str, Any], base: Config | None = None) -> Config:
    """Return ``base`` with the given settings changed; refuse any that do not exist."""
    name = tables.get("preset")
    if name is not None and not isinstance(name, str):
        message = f"preset must be a name, not {name!r}"
        raise ConfigError(message)
    config = preset(name) if name is not None else (base or Config())
    for step, settings in tables.items():
        if step == "preset":
            continue
        if step not in _steps():
            raise ConfigError(_unknown(step, _steps()))
        if not isinstance(settings, Mapping):
            message = f"{step} is a table of settings, not {settings!r}"
            raise ConfigError(message)
        for key, value in settings.items():
            config = _with(config, step, key, value)
    check(config)
    return config


def from_toml(text: str, base: Config | None = None) -> Config:
    """Return ``base`` with the settings of a TOML document."""
    try:
        return from_dict(tomllib.loads(text), base)
    except tomllib.TOMLDecodeError as error:
        message = f"not a TOML file: {error}"
        raise ConfigError(message) from error


def with_settings(config: Config, assignments: Iterable[str]) -> Config:
    """Return ``config`` with ``step.key=value`` assignments, values written as in TOML."""
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        step, dot, key = path.strip().partition(".")
        if not equals or not dot:
            message = f"{assignment!r} is not a setting; write it as patches.extent_mm=6"
            raise ConfigError(message)
        if step not in _steps():
            raise ConfigError(_unknown(path.strip(), [f"{s}.{key}" for s in _steps()]))
        config = _with(config, step, key, _parse(text.strip()))
    check(config)
    return config


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the settings that differ, each as ``patches.size: 24 → 32``."""
    found = []
    for key in sorted({*old, *new}):
        left, right = old.get(key), new.get(key)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            found += [f"{key}.{line}" for line in differences(left, right)]
        elif left != right:
            found.append(f"{key}: {left} → {right}")
    return found


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a JSON value, independent of the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def check(config: Config) -> None:
    """Raise :class:`ConfigError` for a value that no step could work with."""
    rules = [
        (config.patches.extent_mm > 0, "patches.extent_mm must be positive"),
        (4 <= config.patches.size <= 128, "patches.size must lie between 4 and 128"),
        (0 < config.join.epsilon <= 1, "join.epsilon must lie between 0 and 1"),
        (config.join.k >= 0, "join.k must be positive, or 0 for all witnesses"),
        (config.join.stretch_mm >= 0, "join.stretch_mm must not be negative"),
        (config.join.memory_mb >= 64, "join.memory_mb must be at least 64"),
        (1 <= config.residuals.bins <= 100_000, "residuals.bins must lie between 1 and 100000"),
        (config.residuals.min_pairs >= 2, "residuals.min_pairs must be at least 2"),
        (config.quality.reach_mm > 0, "quality.reach_mm must be positive"),
        (0 <= config.findings.worst_share <= 1, "findings.worst_share must lie between 0 and 1"),
        (config.findings.bridge_mm >= 0, "findings.bridge_mm must not be negative"),
    ]
    for holds, message in rules:
        if not holds:
            raise ConfigError(message)


def _steps() -> list[str]:
    return [f.name for f in dataclasses.fields(Config) if f.name != "preset"]


def _with(config: Config, step: str, key: str, value: Any) -> Config:
    settings = getattr(config, step)
    known = [f.name for f in dataclasses.fields(settings)]
    if key not in known:
        raise ConfigError(_unknown(f"{step}.{key}", [f"{step}.{name}" for name in known]))
    kind = get_type_hints(type(settings))[key]
    changed = dataclasses.replace(settings, **{key: _coerce(f"{step}.{key}", value, kind)})
    return dataclasses.replace(config, **{step: changed})


def _coerce(path: str, value: Any, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        message = f"{path} = {value!r}: it must be {_listed(get_args(kind))}"
    elif get_origin(kind) is tuple:
        values = value if isinstance(value, list | tuple) else [value]
        if all(type(v) is int for v in values):
            return tuple(values)
        message = f"{path} = {value!r}: it must be a list of whole numbers"
    elif kind is float and type(value) in (int, float) and abs(value) <= sys.float_info.max:
        return float(value)
    elif kind is int and type(value) is int:
        return value
    else:
        expected = "a whole number" if kind is int else "a finite number"
        message = f"{path} = {value!r}: it must be {expected}"
    raise ConfigError(message)


def _parse(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word is a string


def _unknown(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"; did you mean '{near[0]}'?" if near else f"; there is {_listed(known)}"
    return f"{name} is not a setting{hint}"


def _listed(names: Iterable[object]) -> str:
    words = [str(name) for name in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"

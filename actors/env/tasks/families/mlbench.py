"""The generators of R's package mlbench (Leisch and Dimitriadou, 2010) at their defaults; all of them are held out.

The list was chosen by others, and policies and presets were final before it was first played. Problems that other
families already have (spirals, friedman1, xor) are left out. Numeric targets become quartiles. Where mlbench fixes the
number of rows of each class, classes are drawn with these probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from actors.env.tasks.family import TaskFamily
from actors.env.tasks.task import Rows, Sizes, Task, draw_splits

Points = NDArray[np.floating]  # [n, F]
Valued = tuple[Points, NDArray[np.float64]]  # x [n, F], a number for each
Draw = Callable[[np.random.Generator, int], Rows]
Part = Callable[[np.random.Generator, int], Points]
SIZES = Sizes(1024, 1024, 1024)
POOL_ROWS = 4096  # used to find quartiles
DIMENSIONS = 20


def _classes(*parts: Part, shares: Sequence[float] | None = None) -> Draw:
    """Return a mixture with one class for each part; equally frequent without `shares`."""
    chances = None if shares is None else np.asarray(shares) / sum(shares)

    def draw(rng: np.random.Generator, n: int) -> Rows:
        y = rng.choice(len(parts), n, p=chances)
        drawn = [part(rng, int((y == k).sum())) for k, part in enumerate(parts)]
        x = np.empty((n, drawn[0].shape[1]))
        for k, part_rows in enumerate(drawn):
            x[y == k] = part_rows
        return x, y

    return draw


def _normal(middle: Sequence[float] | NDArray[np.float64], deviation: float = 1.0) -> Part:
    return lambda rng, n: np.asarray(middle) + deviation * rng.standard_normal((n, len(middle)))


def _box(*sides: tuple[float, float]) -> Part:
    low, high = np.transpose(sides)
    return lambda rng, n: rng.uniform(low, high, (n, len(sides)))


def _inside(box: Part, holds: Callable[[Points], NDArray[np.bool_]], shift: tuple[float, float] = (0.0, 0.0)) -> Part:
    """Draw uniformly from the points of a box for which `holds` is true, then shift them."""

    def part(rng: np.random.Generator, n: int) -> Points:
        found = np.empty((0, 2))
        while len(found) < n:
            x = box(rng, 4 * n)
            found = np.concatenate([found, x[holds(x)]])
        return np.asarray(found[:n] + shift)

    return part


def _oval(x: NDArray[np.float64], a: float, c: float) -> NDArray[np.float64]:
    """Return half the height of Cassini's oval at x: foci at +-c, product of the distances to them a^2."""
    return np.asarray(np.sqrt(np.maximum(0.0, np.sqrt(a**4 + (2 * c * x) ** 2) - x**2 - c**2)))


def _cassini() -> Draw:
    """Two bananas, each between a convex oval and one with a waist, and a disc between them."""
    focus = 0.97
    convex = np.sqrt((1 + focus**2) / 3)
    wide = np.sqrt(1 + focus**2)

    def banana(p: Points) -> NDArray[np.bool_]:
        x, y = p.T
        return np.asarray((y < _oval(x, 1.0, focus)) & (y > -_oval(x, np.sqrt(2) * convex, convex)))

    low = _inside(_box((-wide, wide), (-1.0, 0.6)), banana, (0.0, -1.1))
    high = _inside(_box((-wide, wide), (-0.6, 1.0)), lambda p: banana(p * (1, -1)), (0.0, 1.1))
    disc = _inside(_box((-0.6, 0.6), (-0.6, 0.6)), lambda p: np.asarray((p**2).sum(1) < 0.36))
    return _classes(low, high, disc, shares=(2, 2, 1))


def _circle(rng: np.random.Generator, n: int) -> Rows:
    """Inside or outside of a disc with half of the area of the square."""
    x = rng.uniform(-1.0, 1.0, (n, 2))
    return x, ((x**2).sum(1) > 2 / np.pi).astype(np.int64)


def _triangle(rng: np.random.Generator, n: int) -> Points:
    x, y = rng.uniform(-1.0, 1.0, n), rng.uniform(1.0, 2.0, n)
    return np.stack([x * (2 - y) + 1, y], 1)


def _wave(rng: np.random.Generator, n: int) -> Points:
    x = rng.uniform(0.5, 2.0, n)
    return np.stack([x, np.cos(4 * x) - x + rng.uniform(-0.2, 0.2, n)], 1)


def _nose(rng: np.random.Generator, n: int) -> Points:
    x, y = rng.uniform(-0.2, 0.2, n), rng.uniform(0.0, 0.75, n)
    return np.stack([x * (1 - y), y], 1)


def _mouth(rng: np.random.Generator, n: int) -> Points:
    x = rng.uniform(-1.0, 1.0, n)
    return np.stack([x, x**2 - 1 + 0.05 * rng.standard_normal(n)], 1)


def _either(*parts: Part) -> Part:
    """Return a part that is a mixture of parts."""
    return lambda rng, n: _classes(*parts)(rng, n)[0]


def _waves() -> Draw:
    """Breiman's waveforms (1984): two of three triangular waves mixed at random, with noise, at 21 positions."""
    places = np.arange(1, 22)
    bumps = [np.maximum(6.0 - np.abs(places - middle), 0.0) for middle in (11, 15, 7)]

    def mixed(first: int, second: int) -> Part:
        def part(rng: np.random.Generator, n: int) -> Points:
            share = rng.uniform(size=(n, 1))
            return np.asarray(share * bumps[first] + (1 - share) * bumps[second] + rng.standard_normal((n, 21)))

        return part

    return _classes(mixed(0, 1), mixed(0, 2), mixed(1, 2))


def _friedman2(rng: np.random.Generator, n: int) -> Valued:
    x = _friedman_inputs(rng, n)
    return x, np.hypot(x[:, 0], _reactance(x)) + 125.0 * rng.standard_normal(n)


def _friedman3(rng: np.random.Generator, n: int) -> Valued:
    x = _friedman_inputs(rng, n)
    return x, np.arctan(_reactance(x) / x[:, 0]) + 0.1 * rng.standard_normal(n)


def _friedman_inputs(rng: np.random.Generator, n: int) -> Points:
    """Resistance, angular frequency, inductance and capacitance of a circuit (Friedman, 1991)."""
    return rng.uniform((0.0, 40 * np.pi, 0.0, 1.0), (100.0, 560 * np.pi, 1.0, 11.0), (n, 4))


def _reactance(x: Points) -> NDArray[np.float64]:
    return np.asarray(x[:, 1] * x[:, 2] - 1 / (x[:, 1] * x[:, 3]))


def _peak(rng: np.random.Generator, n: int) -> Valued:
    """A Gaussian bump of the radius, which is uniform in 0 to 3."""
    radius, x = rng.uniform(0.0, 3.0, n), rng.standard_normal((n, DIMENSIONS))
    x *= (radius / np.linalg.norm(x, axis=1))[:, None]
    return x, 25 * np.exp(-0.5 * radius**2)


@cache
def _edges(draw: Callable[[np.random.Generator, int], Valued]) -> NDArray[np.float64]:
    return np.quantile(draw(np.random.default_rng(0), POOL_ROWS)[1], (0.25, 0.5, 0.75))


def _quartiles(draw: Callable[[np.random.Generator, int], Valued]) -> Draw:
    def drawn(rng: np.random.Generator, n: int) -> Rows:
        x, value = draw(rng, n)
        return x, np.digitize(value, _edges(draw))

    return drawn


CORNERS = [[k >> bit & 1 for bit in range(3)] for k in range(8)]
TETRAHEDRON = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) / np.sqrt(8)  # edges of length 1
AXIS = np.ones(DIMENSIONS) / np.sqrt(DIMENSIONS)
ZIGZAG = np.resize([1.0, -1.0], DIMENSIONS) / np.sqrt(DIMENSIONS)
PROBLEMS: dict[str, tuple[int, Draw, str]] = {
    "two_normals": (2, _classes(_normal((1, 1)), _normal((-1, -1))), "two overlapping Gaussians in the plane"),
    "cassini": (3, _cassini(), "two bananas and the disc between them"),
    "circle": (2, _circle, "inside or outside of a disc"),
    "cuboids": (
        4,
        _classes(
            _box((0, 1), (0.75, 1), (0.75, 1)),
            _box((0.75, 1), (0, 0.25), (0, 1)),
            _box((0, 0.25), (0, 1), (0, 0.25)),
            _box((0.4, 0.6), (0.4, 0.6), (0.4, 0.6)),
            shares=(2, 2, 2, 1),
        ),
        "three bars and a cube in space",
    ),
    "friedman2": (4, _quartiles(_friedman2), "quartiles of a circuit's impedance, with noise"),
    "friedman3": (4, _quartiles(_friedman3), "quartiles of a circuit's phase, with noise"),
    "hypercube": (8, _classes(*(_normal(c, 0.1) for c in CORNERS)), "Gaussians at the corners of a cube"),
    "peak": (4, _quartiles(_peak), "quartiles of a bell in twenty dimensions"),
    "ringnorm": (
        2,
        _classes(_normal(0 * AXIS, 2.0), _normal(AXIS)),
        "a narrow Gaussian in a wide one, in twenty dimensions",
    ),
    "shapes": (
        4,
        _classes(_normal((-1, 1.5), 0.2), _box((-1.5, -0.5), (-2, 0)), _triangle, _wave),
        "a Gaussian, a square, a triangle and a wave",
    ),
    "simplex": (4, _classes(*(_normal(c, 0.1) for c in TETRAHEDRON)), "Gaussians at the corners of a tetrahedron"),
    "smiley": (
        4,
        _classes(_normal((-0.8, 1), 0.1), _normal((0.8, 1), 0.1), _nose, _mouth, shares=(2, 2, 3, 5)),
        "eyes, nose and mouth",
    ),
    "threenorm": (
        2,
        _classes(_either(_normal(2 * AXIS), _normal(-2 * AXIS)), _normal(2 * ZIGZAG)),
        "one Gaussian between two, in twenty dimensions",
    ),
    "twonorm": (2, _classes(_normal(2 * AXIS), _normal(-2 * AXIS)), "two Gaussians in twenty dimensions"),
    "waveform": (3, _waves(), "which two of three triangular waves are mixed"),
}


def problem(rng: np.random.Generator, name: str) -> Task:
    classes, draw, _ = PROBLEMS[name]
    return Task(name, classes, *draw_splits(lambda n: draw(rng, n), SIZES))


FAMILIES = tuple(
    TaskFamily(name, "heldout", "vector", description, partial(problem, name=name), SIZES)
    for name, (_, _, description) in PROBLEMS.items()
)

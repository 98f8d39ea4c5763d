"""Rational functions from longitude, latitude and height to row and column: RPC of a product, or four corners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from hyperscene.errors import SceneUnreadable
from hyperscene.service.mapping.products.product import Numbers, RationalFunctions

AXES = ("ROW", "COL", "LONG", "LAT", "HEIGHT")
TERMS = 20


def image_positions(functions: RationalFunctions, lon: Any, lat: Any) -> tuple[Any, Any]:
    """Rows and columns of positions on the ground; 0, 0 is the centre of the first pixel."""
    middle = functions.offsets[2]
    lon = middle + (lon - middle + 180) % 360 - 180  # without a jump at the date line
    height = np.full(np.shape(lon), functions.height_m)
    x, y, h = (
        (values - functions.offsets[axis]) / functions.scales[axis]
        for axis, values in enumerate((lon, lat, height), start=2)
    )
    terms = (1, x, y, h, x * y, x * h, y * h, x**2, y**2, h**2, x * y * h, x**3, x * y**2, x * h**2, x**2 * y, y**3,
             y * h**2, x**2 * h, y**2 * h, h**3)  # fmt: skip
    found = []
    for axis, polynomials in enumerate(zip(functions.numerators, functions.denominators, strict=True)):
        above, below = (
            sum(factor * term for factor, term in zip(polynomial.tolist(), terms, strict=True) if factor)
            for polynomial in polynomials
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            found.append(above / below * functions.scales[axis] + functions.offsets[axis])
    return found[0], found[1]


def read_functions(band: Element, height_m: float, corners: Numbers, name: str) -> RationalFunctions:
    """The RPC of a band in METADATA.XML."""

    def number(tag: str) -> float:
        try:
            return float(band.findtext(tag) or "")
        except ValueError as error:
            raise SceneUnreadable(f"the RPC of {name} lack {tag}: copy the product again") from error

    def polynomial(tag: str) -> Numbers:
        return np.array([number(f"{tag}_{term:02d}") for term in range(1, TERMS + 1)])

    return RationalFunctions(
        numerators=(polynomial("ROW_NUM"), polynomial("COL_NUM")),
        denominators=(polynomial("ROW_DEN"), polynomial("COL_DEN")),
        offsets=np.array([number(f"{axis}_OFF") for axis in AXES]),
        scales=np.array([number(f"{axis}_SCALE") or 1.0 for axis in AXES]),
        height_m=height_m,
        corners=corners,
    )


def functions_of_corners(corners: Numbers, rows: int, cols: int) -> RationalFunctions:
    """The projective transform by the four corner pixels (4, 2): clockwise, from the upper left one."""
    places = np.array([(0, 0), (0, cols - 1), (rows - 1, cols - 1), (rows - 1, 0)], float)
    middle = corners.mean(axis=0)
    spread = np.abs(corners - middle).max(axis=0)
    x, y = ((corners - middle) / spread).T
    own, none = np.column_stack([np.ones(4), x, y]), np.zeros((4, 3))
    equations = [
        np.hstack([*parts, -place[:, None] * own[:, 1:]])
        for parts, place in zip(((own, none), (none, own)), places.T, strict=True)
    ]
    found = np.linalg.solve(np.vstack(equations), places.T.ravel())
    return RationalFunctions(
        numerators=(_polynomial(found[:3]), _polynomial(found[3:6])),
        denominators=(_polynomial([1, *found[6:]]),) * 2,
        offsets=np.array([0, 0, *middle, 0]),
        scales=np.array([1, 1, *spread, 1]),
        height_m=0.0,
        corners=corners,
    )


def _polynomial(first: Sequence[float] | Numbers) -> Numbers:
    return np.array([*first, *[0.0] * (TERMS - len(first))])

"""The picture of a map for a report: preview, scale bar and north arrow, as one SVG inside the page."""

from __future__ import annotations

import base64
import math
from pathlib import Path

import numpy as np
from rasterio.warp import transform as transform_points

from hyperscene.service.assessment.finished_map import FinishedMap
from hyperscene.service.assessment.html_page import Markup
from hyperscene.service.assessment.vector_files import LON_LAT
from hyperscene.service.mapping.gdal import GDAL_ERRORS

WIDTH, MARGIN = 900, 60
BAR_SHARE = 0.25  # of the picture's width, at most
METRES_PER_DEGREE = 111_320.0


def map_figure(finished: FinishedMap, preview: Path) -> Markup:
    """The preview with scale and north, where the map has a position on Earth."""
    shrink = WIDTH / max(finished.rows, finished.cols)
    width, height = finished.cols * shrink, finished.rows * shrink
    data = base64.b64encode(preview.read_bytes()).decode()
    size = f'width="{width:.0f}" height="{height:.0f}"'
    parts = [
        f'<image href="data:image/png;base64,{data}" {size} preserveAspectRatio="none"/>',
        f'<rect {size} fill="none" stroke="#1d2430"/>',
    ]
    directions = _directions(finished)
    if directions is None:
        parts.append(f'<text x="0" y="{height + 25:.0f}">no scale and north: the map has no position on Earth</text>')
    else:
        metres_per_px, north = directions
        parts += [_scale_bar(width, height, metres_per_px / shrink), _north_arrow(width, height, north)]
    return Markup(
        f'<figure><svg xmlns="http://www.w3.org/2000/svg" viewBox="-4 -4 {width + 8:.0f} {height + MARGIN + 8:.0f}" '
        f'style="max-width:{width:.0f}px;width:100%" font-family="system-ui,sans-serif" font-size="16" role="img" '
        f'aria-label="Class map of {_plain(finished.name)}">' + "".join(parts) + "</svg></figure>"
    )


def _directions(finished: FinishedMap) -> tuple[float, float] | None:
    """Metres across a pixel at the middle, and the angle of north from the picture's top, clockwise in degrees."""
    middle = finished.lon_lat(finished.rows // 2, finished.cols // 2)
    if middle is None or finished.crs is None or finished.gcps:
        return None
    lon, lat = middle
    step = 1e-3
    east = step / max(0.01, math.cos(math.radians(lat)))
    try:
        xs, ys = transform_points(LON_LAT, finished.crs, [lon, lon, lon + east], [lat, lat + step, lat])
    except GDAL_ERRORS:
        return None
    cols, rows = ~finished.transform @ (np.array(xs), np.array(ys))
    if not (np.isfinite(cols).all() and np.isfinite(rows).all()):
        return None
    # A step of both sides covers the same metres; their area in pixels gives the size of a pixel.
    up, right = (cols[1] - cols[0], rows[1] - rows[0]), (cols[2] - cols[0], rows[2] - rows[0])
    pixels = math.sqrt(abs(up[0] * right[1] - up[1] * right[0]))
    if pixels == 0:
        return None
    return METRES_PER_DEGREE * step / pixels, math.degrees(math.atan2(up[0], -up[1]))


def _scale_bar(width: float, height: float, metres_per_unit: float) -> str:
    """A bar of 1, 2 or 5 times a power of ten."""
    longest = width * BAR_SHARE * metres_per_unit
    power = 10.0 ** math.floor(math.log10(longest))
    metres = max(factor * power for factor in (1, 2, 5) if factor * power <= longest)
    length = metres / metres_per_unit
    text = f"{metres / 1000:g} km" if metres >= 1000 else f"{metres:g} m"
    y = height + 22
    return (
        f'<path d="M1 {y - 6:.1f}V{y + 6:.1f}M1 {y:.1f}H{length:.1f}M{length:.1f} {y - 6:.1f}V{y + 6:.1f}" '
        f'stroke="#1d2430" stroke-width="2" fill="none"/><text x="0" y="{y + 26:.0f}">{text}</text>'
    )


def _north_arrow(width: float, height: float, degrees: float) -> str:
    x, y = width - 24, height + 30
    return (
        f'<g transform="translate({x:.0f} {y:.0f}) rotate({degrees:.1f})"><path d="M0 -18L7 12L0 6L-7 12Z" '
        f'fill="#1d2430"/></g><text x="{x - 28:.0f}" y="{y + 6:.0f}">N</text>'
    )


def _plain(text: str) -> str:
    return "".join(character for character in text if character.isalnum() or character in " ._-")

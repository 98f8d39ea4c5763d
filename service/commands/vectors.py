"""`hyperscene vectors`: the class map as polygons."""

from __future__ import annotations

import argparse
from pathlib import Path

from hyperscene.service.assessment.finished_map import open_map
from hyperscene.service.assessment.vectors import VectorOptions, write_vectors
from hyperscene.service.cli import DONE


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `hyperscene vectors`."""
    defaults = VectorOptions()
    parser.add_argument("map", type=Path, metavar="MAP", help="the folder that hyperscene classify wrote")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=".gpkg or .geojson (MAP/classes.gpkg)")
    parser.add_argument(
        "--min-pixels", type=int, default=defaults.min_pixels, metavar="N",
        help="smaller areas join their largest neighbour (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--simplify-px", type=float, default=defaults.simplify_px, metavar="PX",
        help="how far edges may move; neighbours keep sharing them (%(default)s)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Write the polygons."""
    finished = open_map(options.map)
    output = options.output or finished.path.parent / "classes.gpkg"
    count = write_vectors(finished, output, VectorOptions(options.min_pixels, options.simplify_px))
    print(f"{output}: {count} polygons")
    return DONE

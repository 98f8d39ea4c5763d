"""The options that say where a scene and its labels lie, shared by the commands that learn and judge."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from training.datasets import LabelledFiles


def add_data_options(parser: argparse._ActionsContainer) -> None:
    """The options behind LabelledFiles."""
    parser.add_argument("--scene", type=Path, required=True, metavar="S", help="GeoTIFF, ENVI, .mat or .npy")
    parser.add_argument(
        "--labels",
        type=Path,
        required=True,
        metavar="L",
        help="raster on the scene's grid, .mat, .npy, or polygons (.gpkg, .geojson, .shp)",
    )
    parser.add_argument(
        "--classes",
        metavar="NAMES",
        help="a,b,c or 1=a,2=b in the order of the label values, with ' #rrggbb' for a colour; or a file, one a line",
    )
    parser.add_argument("--class-field", metavar="F", help="the polygons' field that holds the class")
    parser.add_argument("--variable", metavar="V", help="the cube's variable in a .mat file with several")
    parser.add_argument("--label-variable", metavar="V", help="the labels' variable in a .mat file with several")
    parser.add_argument("--wavelengths", type=Path, metavar="FILE", help="one wavelength a band, for files without")
    parser.add_argument(
        "--nan-is-nodata", action="store_true", help="leave pixels with NaN out instead of refusing them"
    )


def labelled_files(options: argparse.Namespace) -> LabelledFiles:
    """What the options say."""
    return LabelledFiles(**{field.name: getattr(options, field.name) for field in fields(LabelledFiles)})

"""The options for a scene and its labels, shared by train, evaluate and study."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from hyperscene.service.commands.options import add_scene_options
from hyperscene.training.data.datasets import LabelledFiles


def add_data_options(parser: argparse._ActionsContainer) -> None:
    """Add the options for LabelledFiles."""
    parser.add_argument("--scene", type=Path, required=True, metavar="S", help="GeoTIFF, ENVI, a product, .mat or .npy")
    parser.add_argument(
        "--labels",
        type=Path,
        required=True,
        metavar="L",
        help="raster on the scene's grid, .mat, .npy, shapes (.gpkg, .geojson, .fgb, .shp) or a table (.csv)",
    )
    parser.add_argument(
        "--classes",
        metavar="NAMES",
        help="a,b,c in the order of the label values, or 1=a,2=b; 'a #rrggbb' adds a colour; or a file, one per line",
    )
    parser.add_argument("--class-field", metavar="F", help="the field or column that contains the class")
    parser.add_argument("--label-variable", metavar="V", help="the labels' variable, for a .mat file with several")
    add_scene_options(parser)
    parser.add_argument(
        "--nan-is-nodata", action="store_true", help="treat pixels with NaN as no data instead of refusing the scene"
    )


def labelled_files(options: argparse.Namespace) -> LabelledFiles:
    """LabelledFiles from the options."""
    return LabelledFiles(**{field.name: getattr(options, field.name) for field in fields(LabelledFiles)})

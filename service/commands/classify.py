"""`hyperscene classify`: a scene in, seven files out."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from service.cli import DONE
from service.commands.options import add_bundle_option, add_engine_options, add_mapping_options, chosen_bundle
from service.mapping.engines import make_engine
from service.mapping.pipeline import MapOptions, map_scene
from service.mapping.scenes import open_scene
from service.mapping.strips import PROBABILITY_TYPES
from service.progress import Progress


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `hyperscene classify`."""
    parser.add_argument("scene", type=Path, metavar="SCENE", help="a GeoTIFF, an ENVI data file or its header")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="the folder for the results")
    add_bundle_option(parser)
    add_mapping_options(parser)
    add_engine_options(parser)
    parser.add_argument("--strip-px", type=int, default=0, metavar="N", help="rows worked on at a time (by memory)")
    parser.add_argument(
        "--probability-type", choices=PROBABILITY_TYPES, default="uint8", help="how probabilities are stored (uint8)"
    )


def run(options: argparse.Namespace) -> int:
    """Map the scene and say what was found."""
    mapping = MapOptions(options.stride, options.blend, options.probability_type, options.strip_px)
    scene = open_scene(options.scene)
    bundle = chosen_bundle(options)
    engine = make_engine(bundle, options.device, options.threads, options.batch)
    with Progress(0, "patches") as progress:
        summary = map_scene(scene, bundle, engine, options.output, mapping, progress.advance_of)
    for warning in summary["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    print(_table(summary))
    print(f"{options.output}: {summary['patches']} patches in {summary['seconds']['total']:.1f} s on {engine.provider}")
    return DONE


def _table(summary: dict[str, Any]) -> str:
    """A line a class: pixels, share, and hectares where they are known."""
    width = max(len("class"), *(len(entry["name"]) for entry in summary["classes"]))
    has_area = summary["classes"][0]["hectares"] is not None
    lines = [f"{'class':<{width}}  {'pixels':>9}  {'%':>5}" + (f"  {'hectares':>10}" if has_area else "")]
    for entry in summary["classes"]:
        line = f"{entry['name']:<{width}}  {entry['pixels']:>9}  {100 * entry['share']:>5.1f}"
        lines.append(line + (f"  {entry['hectares']:>10.2f}" if has_area else ""))
    if summary["no_data_pixels"]:
        lines.append(f"{'(no data)':<{width}}  {summary['no_data_pixels']:>9}")
    return "\n".join(lines)

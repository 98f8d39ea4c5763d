"""`hyperscene classify`: map a scene into seven files, on this machine or on a server."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from hyperscene.errors import OptionsUnusable
from hyperscene.progress import ProgressBar
from hyperscene.service.cli import DONE
from hyperscene.service.commands.options import (
    add_bundle_option,
    add_engine_options,
    add_mapping_options,
    add_scene_options,
    open_given_scene,
    read_chosen_bundle,
)
from hyperscene.service.mapping.classify import RunControl, report_patches
from hyperscene.service.mapping.engines import choose_engine
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.pipeline import map_scene
from hyperscene.service.mapping.strips import PROBABILITY_TYPES

SHORT_UPLOAD_S = 2.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `hyperscene classify`."""
    parser.add_argument(
        "scene", type=Path, metavar="SCENE", help="a GeoTIFF, an ENVI file, or a product: file, folder or zip"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="the folder for the results")
    add_bundle_option(parser)
    add_scene_options(parser)
    add_mapping_options(parser)
    add_engine_options(parser)
    parser.add_argument("--strip-px", type=int, default=0, metavar="N", help="rows per strip (by memory)")
    parser.add_argument(
        "--unknown", action="store_true", help='give pixels outside the area of applicability the class "unknown"'
    )
    parser.add_argument(
        "--probability-type",
        choices=PROBABILITY_TYPES,
        default="uint8",
        help="sample type of probabilities (uint8)",
    )
    parser.add_argument("--server", metavar="URL", help="map on this server; --bundle is then one of its models")
    parser.add_argument(
        "--api-key", metavar="K", default=os.environ.get("HYPERSCENE_API_KEY"),
        help="the API key ($HYPERSCENE_API_KEY)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Map the scene and print the summary."""
    mapping = MapOptions(options.stride, options.blend, options.probability_type, options.strip_px, options.unknown)
    summary = _map_locally(options, mapping) if options.server is None else _map_remotely(options, mapping)
    print_summary(summary, options.output)
    return DONE


def _map_locally(options: argparse.Namespace, mapping: MapOptions) -> dict[str, Any]:
    scene = open_given_scene(options.scene, options)
    bundle = read_chosen_bundle(options)
    engine, left_out = choose_engine(bundle, options.device, options.threads, options.batch, options.precision)
    for reason in left_out:
        print(f"warning: {reason}", file=sys.stderr)
    with ProgressBar(0, "patches") as progress:
        control = RunControl(report_patches(progress.advance_of))
        return map_scene(scene, bundle, engine, options.output, mapping, control)


def _map_remotely(options: argparse.Namespace, mapping: MapOptions) -> dict[str, Any]:
    if options.wavelengths or options.variable:
        raise OptionsUnusable("--wavelengths and --variable need a scene that is mapped here: leave out --server")
    if options.device != "auto" or options.threads or options.batch or options.strip_px:
        raise OptionsUnusable("the server chooses --device, --threads, --batch and --strip-px: leave them out")
    model = None if options.bundle is None else str(options.bundle.name).removesuffix(".onnx")
    return map_on_server(options.server, options.api_key, options.scene, options.output, model, mapping, options.mask)


def map_on_server(
    server: str,
    api_key: str | None,
    scene: Path,
    output: Path,
    model: str | None,
    mapping: MapOptions,
    mask: str | None = None,
) -> dict[str, Any]:
    """Map a scene on a server, with a progress bar for a long upload and one for the map."""
    from hyperscene.service.client import Client  # here, because a map on this machine starts sooner without httpx

    began = time.monotonic()
    with (
        ProgressBar(0, "bytes") as upload,
        ProgressBar(0, "patches") as progress,
        Client(server, api_key, upload.print_line) as client,
    ):

        def show_upload(done: int, total: int) -> None:
            if time.monotonic() - began > SHORT_UPLOAD_S:
                upload.advance_of(done, total)

        return client.map_scene(scene, output, model, mapping, progress.advance_of, show_upload, mask)


def print_summary(summary: dict[str, Any], output: Path) -> None:
    """Print warnings, the table of classes, and the time taken."""
    for warning in summary["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    print(_table(summary))
    provider, total_s = summary["provider"], summary["seconds"]["total"]
    print(f"{output}: {summary['patches']} patches in {total_s:.1f} s on {provider}")


def _table(summary: dict[str, Any]) -> str:
    """One line per class: pixels, share, and hectares if they are known."""
    width = max(len("class"), *(len(entry["name"]) for entry in summary["classes"]))
    has_area = summary["classes"][0]["hectares"] is not None
    lines = [f"{'class':<{width}}  {'pixels':>9}  {'%':>5}" + (f"  {'hectares':>10}" if has_area else "")]
    for entry in summary["classes"]:
        line = f"{entry['name']:<{width}}  {entry['pixels']:>9}  {100 * entry['share']:>5.1f}"
        lines.append(line + (f"  {entry['hectares']:>10.2f}" if has_area else ""))
    if summary["no_data_pixels"]:
        lines.append(f"{'(no data)':<{width}}  {summary['no_data_pixels']:>9}")
    return "\n".join(lines)

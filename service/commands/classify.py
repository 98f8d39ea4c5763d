"""`hyperscene classify`: a scene in, seven files out; here, or on a server."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

from service.cli import DONE
from service.client import Client
from service.commands.options import add_bundle_option, add_engine_options, add_mapping_options, chosen_bundle
from service.errors import OptionsUnusable
from service.mapping.engines import make_engine
from service.mapping.pipeline import MapOptions, map_scene
from service.mapping.scenes import open_scene
from service.mapping.strips import PROBABILITY_TYPES
from service.progress import Progress

SHORT_UPLOAD_S = 2.0


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
    parser.add_argument("--server", metavar="URL", help="map on this server; --bundle is then a name from its /models")
    parser.add_argument(
        "--api-key", metavar="K", default=os.environ.get("HYPERSCENE_API_KEY"),
        help="the server's key ($HYPERSCENE_API_KEY)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Map the scene and say what was found."""
    mapping = MapOptions(options.stride, options.blend, options.probability_type, options.strip_px)
    summary = _map_here(options, mapping) if options.server is None else _map_there(options, mapping)
    print_summary(summary, options.output)
    return DONE


def _map_here(options: argparse.Namespace, mapping: MapOptions) -> dict[str, Any]:
    scene = open_scene(options.scene)
    bundle = chosen_bundle(options)
    engine = make_engine(bundle, options.device, options.threads, options.batch)
    with Progress(0, "patches") as progress:
        return map_scene(scene, bundle, engine, options.output, mapping, progress.advance_of)


def _map_there(options: argparse.Namespace, mapping: MapOptions) -> dict[str, Any]:
    if options.device != "auto" or options.threads or options.batch or options.strip_px:
        raise OptionsUnusable("--device, --threads, --batch and --strip-px are the server's to choose: leave them out")
    model = None if options.bundle is None else str(options.bundle.name).removesuffix(".onnx")
    return map_on_server(options.server, options.api_key, options.scene, options.output, model, mapping)


def map_on_server(
    server: str, api_key: str | None, scene: Path, output: Path, model: str | None, mapping: MapOptions
) -> dict[str, Any]:
    """Map a scene on a server, with a bar for the upload, where that takes a while, and one for the map."""
    began = time.monotonic()
    with (
        Progress(0, "bytes") as upload,
        Progress(0, "patches") as progress,
        Client(server, api_key, upload.say) as client,
    ):

        def sent(done: int, total: int) -> None:
            if time.monotonic() - began > SHORT_UPLOAD_S:
                upload.advance_of(done, total)

        return client.map_scene(scene, output, model, mapping, progress.advance_of, sent)


def print_summary(summary: dict[str, Any], output: Path) -> None:
    """Warnings, a table of classes, and what it took."""
    for warning in summary["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    print(_table(summary))
    provider, total_s = summary["provider"], summary["seconds"]["total"]
    print(f"{output}: {summary['patches']} patches in {total_s:.1f} s on {provider}")


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

"""Options that several commands share."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hyperscene.model.bundle import DEMO_BUNDLE, Bundle, read_bundle
from hyperscene.progress import ProgressBar
from hyperscene.service.mapping.blend import BLENDS
from hyperscene.service.mapping.devices import DEVICES, PRECISIONS
from hyperscene.service.mapping.options import STRIDES
from hyperscene.service.mapping.products.masks import parse_masks
from hyperscene.service.mapping.products.product import MASK_KINDS, ReadOptions
from hyperscene.service.mapping.scenes import Scene, open_pixels, open_scene


def add_bundle_option(parser: argparse.ArgumentParser) -> None:
    """--bundle."""
    parser.add_argument("--bundle", type=Path, metavar="B", help="the bundle to use (the demo bundle)")


def read_chosen_bundle(options: argparse.Namespace) -> Bundle:
    """Read the bundle of --bundle, or the demo bundle, with a message."""
    if options.bundle is None:
        print(f"no --bundle: using the demo bundle, {DEMO_BUNDLE.name}", file=sys.stderr)
    return read_bundle(options.bundle or DEMO_BUNDLE)


def add_scene_options(parser: argparse._ActionsContainer) -> None:
    """--mask, --wavelengths and --variable."""
    parser.add_argument(
        "--mask", metavar="KINDS",
        help=f"what makes pixels of a product invalid: none, or some of {', '.join(MASK_KINDS)} (cloud,shadow, if it "
        "has them)",
    )  # fmt: skip
    parser.add_argument(
        "--wavelengths", type=Path, metavar="FILE", help="text file with one wavelength per band, for scenes without"
    )
    parser.add_argument("--variable", metavar="V", help="the cube's variable, for a file with several")


def read_options(options: argparse.Namespace) -> ReadOptions:
    """ReadOptions from the options of `add_scene_options`."""
    return ReadOptions(parse_masks(options.mask), options.wavelengths, options.variable)


def open_given_scene(path: Path, options: argparse.Namespace) -> Scene:
    """Open a scene by the options of `add_scene_options`; shows progress while files are unpacked or rewritten."""
    with ProgressBar(0, "bytes unpacked") as progress:
        scene = open_scene(path, options=read_options(options), report=progress.advance_of)
    with ProgressBar(0, "bytes rewritten") as progress, open_pixels(scene, progress.advance_of):
        return scene


def add_mapping_options(parser: argparse.ArgumentParser) -> None:
    """--stride and --blend."""
    parser.add_argument(
        "--stride", type=int, choices=STRIDES, default=0, metavar="PX",
        help="pixels between patch centres: 1, 2, 4, 8, and 16 for token bundles (4; 8 for token bundles)",
    )  # fmt: skip
    parser.add_argument(
        "--blend", choices=BLENDS, default="angle",
        help="how overlapping patches are weighted; none requires stride 1 (angle)",
    )  # fmt: skip


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """--device, --precision, --threads and --batch."""
    parser.add_argument(
        "--device", choices=DEVICES, default="auto", help="device that runs the network (auto: the fastest)"
    )
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="auto",
        help="auto: bfloat16 where it is faster and classes stay the same (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="number of CPU threads (all cores)")
    parser.add_argument("--batch", type=int, default=0, metavar="N", help="patches per call (16, or 256 on a GPU)")

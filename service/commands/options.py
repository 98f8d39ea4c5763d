"""Options that several commands share."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hyperscene.model.bundle import DEMO_BUNDLE, Bundle, read_bundle
from hyperscene.service.mapping.blend import BLENDS
from hyperscene.service.mapping.devices import DEVICES
from hyperscene.service.mapping.options import STRIDES


def add_bundle_option(parser: argparse.ArgumentParser) -> None:
    """--bundle."""
    parser.add_argument("--bundle", type=Path, metavar="B", help="the bundle to use (the demo bundle)")


def read_chosen_bundle(options: argparse.Namespace) -> Bundle:
    """Read the bundle of --bundle, or the demo bundle, with a message."""
    if options.bundle is None:
        print(f"no --bundle: using the demo bundle, {DEMO_BUNDLE.name}", file=sys.stderr)
    return read_bundle(options.bundle or DEMO_BUNDLE)


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
    """--device, --threads and --batch."""
    parser.add_argument(
        "--device", choices=DEVICES, default="auto", help="device that runs the network (auto: the fastest)"
    )
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="number of CPU threads (all cores)")
    parser.add_argument("--batch", type=int, default=0, metavar="N", help="patches per call (16, or 256 on a GPU)")

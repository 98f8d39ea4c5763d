"""`hyperscene synth`: write a synthetic scene and its true labels."""

from __future__ import annotations

import argparse
from pathlib import Path

from hyperscene.training.data.synthetic import SyntheticScene, write_scene


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `hyperscene synth`."""
    defaults = SyntheticScene()
    parser.add_argument("output", type=Path, metavar="OUT", help=".tif for GeoTIFF; .img, .bsq, .bil or .bip for ENVI")
    parser.add_argument("--rows", type=int, default=defaults.rows, help="height in pixels (%(default)s)")
    parser.add_argument("--cols", type=int, default=defaults.cols, help="width in pixels (%(default)s)")
    parser.add_argument(
        "--bands", type=int, default=defaults.bands, help="number of bands from 420 to 2450 nm (%(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=defaults.seed, help="each seed gives another landscape (%(default)s)"
    )
    parser.add_argument(
        "--snr-db", type=float, default=defaults.snr_db, help="signal-to-noise ratio in dB (%(default)s)"
    )
    parser.add_argument("--labels", type=Path, metavar="LABELS.tif", help="write the true classes to this file")


def run(options: argparse.Namespace) -> int:
    """Write the scene and print a summary."""
    scene = SyntheticScene(options.rows, options.cols, options.bands, options.seed, options.snr_db)
    write_scene(scene, options.output, options.labels)
    print(f"{options.output}: {scene.rows} x {scene.cols} x {scene.bands}, seed {scene.seed}")
    if options.labels is not None:
        print(f"{options.labels}: the true classes")
    return 0

"""`hyperscene evaluate`: how often a bundle is right on labelled pixels it did not learn from."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from model.bundle import DEMO_BUNDLE, load_bundle
from service.cli import DONE
from training.evaluate import score_bundle, score_table


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `hyperscene evaluate`."""
    parser.add_argument("--bundle", type=Path, metavar="B", help="the bundle to score (the demo bundle)")
    parser.add_argument("--scene", type=Path, required=True, metavar="S", help="as for train")
    parser.add_argument("--labels", type=Path, required=True, metavar="L", help="as for train")
    parser.add_argument("--classes", metavar="NAMES", help="names of the label values, as for train")
    parser.add_argument("--class-field", metavar="F", help="the polygons' field that holds the class")
    parser.add_argument("--variable", help="the cube's variable in a .mat file with several")
    parser.add_argument("--label-variable", help="the labels' variable in a .mat file with several")
    parser.add_argument("--wavelengths", type=Path, metavar="FILE", help="one wavelength a band, for files without")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")


def run(options: argparse.Namespace) -> int:
    """Score every labelled pixel by the patch round it, the training pixels left out."""
    if options.bundle is None:
        print(f"no --bundle: scoring the demo bundle, {DEMO_BUNDLE.name}", file=sys.stderr)
    scored = score_bundle(
        load_bundle(options.bundle or DEMO_BUNDLE),
        options.scene,
        options.labels,
        class_names=options.classes,
        class_field=options.class_field,
        variable=options.variable,
        label_variable=options.label_variable,
        wavelengths_path=options.wavelengths,
    )
    if options.json:
        print(json.dumps(scored.record(), indent=2))
    else:
        print(score_table(scored.scores))
        print(scored.remark)
    return DONE

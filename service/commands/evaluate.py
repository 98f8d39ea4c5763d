"""`hyperscene evaluate`: how often a bundle is right on labelled pixels it did not learn from."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from model.bundle import load_bundle
from service.cli import DONE
from training.evaluate import score_bundle, score_table


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `hyperscene evaluate`."""
    parser.add_argument("--bundle", type=Path, required=True, metavar="B", help="the bundle to score")
    parser.add_argument("--scene", type=Path, required=True, metavar="S", help="as for train")
    parser.add_argument("--labels", type=Path, required=True, metavar="L", help="as for train")
    parser.add_argument("--class-field", metavar="F", help="the polygons' field that holds the class")
    parser.add_argument("--variable", help="the cube's variable in a .mat file with several")
    parser.add_argument("--label-variable", help="the labels' variable in a .mat file with several")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")


def run(options: argparse.Namespace) -> int:
    """Score every labelled pixel by the patch round it, the training pixels left out."""
    scored = score_bundle(
        load_bundle(options.bundle),
        options.scene,
        options.labels,
        class_field=options.class_field,
        variable=options.variable,
        label_variable=options.label_variable,
    )
    if options.json:
        print(json.dumps(scored.record(), indent=2))
    else:
        print(score_table(scored.scores))
        print(scored.remark)
    return DONE

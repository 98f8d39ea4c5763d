"""`hyperscene evaluate`: how often a bundle is right on labelled pixels it did not learn from."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from model.bundle import DEMO_BUNDLE, load_bundle
from service.cli import DONE
from service.commands.data import add_data_options, labelled_files
from training.evaluate import score_bundle, score_table


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `hyperscene evaluate`."""
    parser.add_argument("--bundle", type=Path, metavar="B", help="the bundle to score (the demo bundle)")
    add_data_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")


def run(options: argparse.Namespace) -> int:
    """Score every labelled pixel by the patch round it, the training pixels left out."""
    if options.bundle is None:
        print(f"no --bundle: scoring the demo bundle, {DEMO_BUNDLE.name}", file=sys.stderr)
    scored = score_bundle(load_bundle(options.bundle or DEMO_BUNDLE), labelled_files(options))
    if options.json:
        print(json.dumps(scored.record(), indent=2))
    else:
        print(score_table(scored.scores))
        print(scored.remark)
    return DONE

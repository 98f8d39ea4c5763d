"""`hyperscene evaluate`: how often a bundle is right on labelled pixels it did not learn from."""

from __future__ import annotations

import argparse
import json

from service.cli import DONE
from service.commands.data import add_data_options, labelled_files
from service.commands.options import add_bundle_option, add_mapping_options, chosen_bundle
from service.mapping.pipeline import MapOptions
from training.evaluate import score_bundle, score_table


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `hyperscene evaluate`."""
    add_bundle_option(parser)
    add_data_options(parser)
    add_mapping_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")


def run(options: argparse.Namespace) -> int:
    """Score the map a user would get on every labelled pixel, the training pixels left out."""
    mapping = MapOptions(options.stride, options.blend)
    scored = score_bundle(chosen_bundle(options), labelled_files(options), mapping)
    if options.json:
        print(json.dumps(scored.record(), indent=2))
    else:
        print(score_table(scored.scores))
        print(scored.remark)
    return DONE

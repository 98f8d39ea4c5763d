"""`hyperscene evaluate`: the accuracy of a bundle on labelled pixels that it was not trained on."""

from __future__ import annotations

import argparse

from hyperscene.json_text import json_text
from hyperscene.service.cli import DONE
from hyperscene.service.commands.data import add_data_options, labelled_files
from hyperscene.service.commands.options import add_bundle_option, add_mapping_options, read_chosen_bundle
from hyperscene.service.mapping.options import MapOptions
from hyperscene.training.evaluate import score_bundle, score_table


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `hyperscene evaluate`."""
    add_bundle_option(parser)
    add_data_options(parser)
    add_mapping_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")


def run(options: argparse.Namespace) -> int:
    """Score the map on all labelled pixels except the training pixels."""
    mapping = MapOptions(options.stride, options.blend)
    scored = score_bundle(read_chosen_bundle(options), labelled_files(options), mapping)
    if options.json:
        print(json_text(scored.record(), indent=2))
    else:
        print(score_table(scored.scores))
        print(scored.remark)
    return DONE

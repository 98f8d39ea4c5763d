"""`hyperscene compare`: what changed between two maps of the same place."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hyperscene.json_text import json_text
from hyperscene.service.assessment.comparison import CHANGES, compare_maps
from hyperscene.service.assessment.comparison_page import comparison_page
from hyperscene.service.assessment.finished_map import open_map
from hyperscene.service.cli import DONE
from hyperscene.service.commands.assess import write_texts


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `hyperscene compare`."""
    parser.add_argument("first", type=Path, metavar="FIRST", help="a map's folder: the earlier date, or one model")
    parser.add_argument("second", type=Path, metavar="SECOND", help="the other map's folder")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help=f"writes {CHANGES}, changes.json, changes.html"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")


def run(options: argparse.Namespace) -> int:
    """Compare, write, and print the largest changes."""
    found = compare_maps(open_map(options.first), open_map(options.second), options.output)
    document = found.record()
    text = json_text(document, indent=2)
    write_texts(options.output, {"changes.json": text + "\n", "changes.html": comparison_page(document)})
    if options.json:
        print(text)
        return DONE
    for warning in document["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"{document['changed_pixels']} of {document['compared_pixels']} pixels changed")
    print(f"{options.output}: {CHANGES}, changes.json, changes.html")
    return DONE

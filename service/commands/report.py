"""`hyperscene report`: one page about a map that a person can print and sign."""

from __future__ import annotations

import argparse
from pathlib import Path

from hyperscene.json_text import json_text
from hyperscene.model.bundle import read_bundle
from hyperscene.service.assessment.finished_map import open_map
from hyperscene.service.assessment.map_report import ACCURACY, REPORTS, make_report, read_accuracy, report_page
from hyperscene.service.cli import DONE
from hyperscene.service.commands.assess import write_texts


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `hyperscene report`."""
    parser.add_argument("map", type=Path, metavar="MAP", help="the folder that hyperscene classify wrote")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="folder for report.html and .json (MAP)")
    parser.add_argument("--accuracy", type=Path, metavar="FILE", help="accuracy.json (MAP/accuracy.json, if there)")
    parser.add_argument("--bundle", type=Path, metavar="B", help="the bundle, for its training labels and scores")
    parser.add_argument("--json", action="store_true", help="print the JSON document as well, and nothing else")


def run(options: argparse.Namespace) -> int:
    """Write report.html and report.json."""
    finished = open_map(options.map)
    beside = finished.path.parent / ACCURACY
    path = options.accuracy or (beside if beside.is_file() else None)
    accuracy = None if path is None else read_accuracy(path)
    bundle = None if options.bundle is None else read_bundle(options.bundle)
    document = make_report(finished, accuracy, bundle)
    folder = options.output or finished.path.parent
    text = json_text(document, indent=2)
    write_texts(folder, dict(zip(REPORTS, (report_page(document, finished), text + "\n"), strict=True)))
    print(text if options.json else f"{folder / REPORTS[0]}: areas are {document['areas_are']}")
    return DONE

"""`hyperscene zones`: class shares and areas of given polygons."""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path
from typing import Any

from hyperscene.json_text import json_text
from hyperscene.service.assessment.finished_map import open_map
from hyperscene.service.assessment.samples import LABEL_FIELD, read_answers
from hyperscene.service.assessment.vector_files import read_shapes
from hyperscene.service.assessment.zones import zone_records
from hyperscene.service.cli import DONE
from hyperscene.service.commands.assess import write_texts


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `hyperscene zones`."""
    parser.add_argument("map", type=Path, metavar="MAP", help="the folder that hyperscene classify wrote")
    parser.add_argument("zones", type=Path, metavar="ZONES", help="polygons: GeoPackage, GeoJSON, Shapefile")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write .csv or .json")
    parser.add_argument("--zone-field", metavar="F", help="field with the names of the zones (their numbers)")
    parser.add_argument("--sample", type=Path, metavar="SAMPLE", help="a checked sample, for areas with intervals")
    parser.add_argument("--class-field", default=LABEL_FIELD, metavar="F", help="field with the answers (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")


def run(options: argparse.Namespace) -> int:
    """Print or write one record for each zone."""
    finished = open_map(options.map)
    zones = read_shapes(options.zones, finished)
    answers = None if options.sample is None else read_answers(options.sample, finished, options.class_field)
    records = zone_records(finished, zones, answers, options.zone_field)
    text = json_text(records, indent=2)
    if options.output is not None:
        is_json = options.output.suffix.lower() == ".json"
        write_texts(options.output.parent, {options.output.name: text + "\n" if is_json else _csv(records)})
    print(text if options.json else _csv(records), end="\n" if options.json else "")
    return DONE


def _csv(records: list[dict[str, Any]]) -> str:
    """One line for each zone and class."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["zone", "class", "pixels", "share", "hectares", "points", "estimated_share", "low", "high",
                    "estimated_hectares", "hectares_low", "hectares_high"])  # fmt: skip
    for record in records:
        for number, entry in enumerate(record["classes"]):
            found = record["estimates"][number] if record["estimates"] else {}
            figures = [
                (found.get(part) or {}).get(name)
                for part in ("area_share", "area_hectares")
                for name in ("value", "low", "high")
            ]
            table.writerow([record["zone"], entry["name"], entry["pixels"], entry["share"], entry["hectares"],
                            record["points"], *figures])  # fmt: skip
    return text.getvalue()

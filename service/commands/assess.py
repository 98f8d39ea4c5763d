"""`hyperscene assess`: draw a sample of a finished map, and estimate accuracy and areas from the answers."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from hyperscene.errors import OutputUnwritable, write_error
from hyperscene.json_text import json_text
from hyperscene.service.assessment.accuracy import AccuracyReport, agreement, assess
from hyperscene.service.assessment.accuracy_page import accuracy_page
from hyperscene.service.assessment.buffers import open_buffer
from hyperscene.service.assessment.drawing import SampleOptions, draw_sample
from hyperscene.service.assessment.finished_map import open_map
from hyperscene.service.assessment.html_page import interval
from hyperscene.service.assessment.samples import (
    LABEL_FIELD,
    design_path,
    read_answers,
    read_design,
    write_sample,
)
from hyperscene.service.cli import DONE


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add `sample` and `report` with their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_sample(actions.add_parser("sample", help="draw a stratified random sample of a map"))
    _add_report(actions.add_parser("report", help="estimate accuracy and areas from a checked sample"))


def _add_sample(parser: argparse.ArgumentParser) -> None:
    defaults = SampleOptions()
    parser.add_argument("map", type=Path, metavar="MAP", help="the folder that hyperscene classify wrote")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=".gpkg, .geojson or .csv")
    parser.add_argument("--total", type=int, metavar="N", help="number of points (by --target-se)")
    parser.add_argument(
        "--target-se", type=float, default=defaults.target_se, metavar="SE",
        help="standard error of overall accuracy that the sample should reach (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--expected-accuracy", type=float, default=defaults.expected_accuracy, metavar="P",
        help="what the overall accuracy may be (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--per-class", type=int, default=defaults.per_class, metavar="N", help="points per class at least (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=defaults.seed, help="another seed draws other points (%(default)s)")
    parser.add_argument("--labels", type=Path, metavar="L", help="the training labels, for --buffer-px")
    parser.add_argument(
        "--buffer-px", type=int, default=0, metavar="PX", help="leave out pixels this close to training labels (0)"
    )


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("map", type=Path, metavar="MAP", help="the folder that hyperscene classify wrote")
    parser.add_argument("sample", type=Path, metavar="SAMPLE", help="the sample with its answers, or field plots")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="writes accuracy.json, .csv and .html there")
    parser.add_argument("--design", type=Path, metavar="FILE", help="the design (SAMPLE.design.json, if it is there)")
    parser.add_argument("--class-field", default=LABEL_FIELD, metavar="F", help="field with the answers (%(default)s)")
    parser.add_argument("--second", type=Path, metavar="SAMPLE2", help="a second interpreter's answers, for agreement")
    parser.add_argument(
        "--other-map", action="store_true", help="the sample was drawn from another map of the same place"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")


def run(options: argparse.Namespace) -> int:
    """Draw a sample, or report on one."""
    return _sample(options) if options.action == "sample" else _report(options)


def _sample(options: argparse.Namespace) -> int:
    finished = open_map(options.map)
    wanted = SampleOptions(options.total, options.target_se, options.per_class, options.expected_accuracy, options.seed)
    buffer = open_buffer(finished, options.labels, options.buffer_px) if options.labels else None
    sample = draw_sample(finished, wanted, buffer)
    _make_folder(options.output.parent)
    write_sample(options.output, sample, finished)
    for value, name in enumerate(finished.class_names, start=1):
        print(f"{name}: {int((sample.strata == value).sum())} of {int(sample.frame.pixels[value - 1])} pixels")
    print(f"{options.output}: {len(sample.pixels)} points; fill in the field {LABEL_FIELD}")
    print(f"{design_path(options.output)}: the classes of the map at the points; not for the interpreter")
    return DONE


def _report(options: argparse.Namespace) -> int:
    finished = open_map(options.map)
    answers = read_answers(options.sample, finished, options.class_field)
    beside = design_path(options.sample)
    path = options.design or (beside if beside.is_file() else None)
    design = None if path is None else read_design(path)
    report = assess(finished, answers, design, accepts_other_map=options.other_map)
    if options.second is not None:
        second = read_answers(options.second, finished, options.class_field)
        report = replace(report, agreement=agreement(answers, second, len(finished.class_names)))
    if options.output is not None:
        write_report(report, options.output)
    if options.json:
        print(json_text(report.record(), indent=2))
    else:
        _print_report(report, options.output)
    return DONE


def write_report(report: AccuracyReport, folder: Path) -> None:
    """Write accuracy.json, accuracy.csv and accuracy.html."""
    document = json_text(report.record(), indent=2) + "\n"
    texts = {"accuracy.json": document, "accuracy.csv": report.csv_text(), "accuracy.html": accuracy_page(report)}
    write_texts(folder, texts)


def write_texts(folder: Path, texts: dict[str, str]) -> None:
    """Write files of text into a folder, which is made if it is missing."""
    _make_folder(folder)
    try:
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise write_error(error) from error


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputUnwritable(f"{folder} cannot be created ({error.strerror}): choose another folder") from error


def _print_report(report: AccuracyReport, output: Path | None) -> None:
    document = report.record()
    width = max(len(entry["name"]) for entry in document["classes"])
    print(document["estimator"]["explanation"])
    print(f"overall accuracy, %: {interval(document['overall_accuracy'])}")
    print(f"{'class':<{width}}  {'user, %':>22}  {'producer, %':>22}  {'area':>36}")
    for entry in document["classes"]:
        area = entry["area_hectares"]
        text = f"{interval(area, 1, 2)} ha" if area else f"{interval(entry['area_share'])} %"
        users, producers = interval(entry["users_accuracy"]), interval(entry["producers_accuracy"])
        print(f"{entry['name']:<{width}}  {users:>22}  {producers:>22}  {text:>36}")
    for entry in document["classes"]:
        for remark in entry["remarks"]:
            print(f"{entry['name']}: {remark}")
    for note in document["notes"]:
        print(note)
    if document["agreement"]:
        print(f"agreement of two interpreters: {100 * document['agreement']['share']:.1f} %")
    if output is not None:
        print(f"{output}: accuracy.html, accuracy.json, accuracy.csv")

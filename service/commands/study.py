"""`hyperscene study`: the paper's experiments on any labelled scene, cell by cell, and a report."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from model.attention import VARIANTS
from service.cli import DONE, INTERRUPTED
from service.commands.data import add_data_options, labelled_files
from service.errors import OutputUnwritable, WrongUsage
from service.progress import Progress
from training.datasets import LabelledFiles
from training.fit import RECIPES
from training.plan import ABLATIONS, BASELINES, Amount, Asked, choose, choose_recipes, plan_cells
from training.published import PUBLISHED, find_files
from training.splits import SPLITS
from training.study import CellsDone, StudyOptions, read_study, report_writer, run_study, write_text
from training.summary import compare_published, summarise_study

Number = TypeVar("Number", int, float)

PAPERS_AMOUNT = Amount(fraction=0.01)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `hyperscene study`."""
    data = parser.add_argument_group("data")
    add_data_options(data)
    for action in data._group_actions:
        action.required = False  # --report-only needs no scene, --published finds the labels; run() asks otherwise
    data.add_argument(
        "--published",
        choices=PUBLISHED,
        help="--scene is this scene of the paper's, a folder or its cube: classes are known, and Table I is compared",
    )
    data.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the study's folder; the same command again goes on"
    )
    data.add_argument("--json", type=Path, metavar="FILE", help="write means and deviations over seeds as JSON too")
    data.add_argument("--report-only", action="store_true", help="write the report of what is there, and run nothing")

    cells = parser.add_argument_group("cells")
    cells.add_argument("--seeds", type=int, default=5, metavar="N", help="(%(default)s)")
    for option, names in (("variants", VARIANTS), ("ablations", ABLATIONS), ("baselines", BASELINES)):
        cells.add_argument(
            f"--{option}", default="all", metavar="NAMES", help=f"all, none, or some of {', '.join(names)} (all)"
        )
    cells.add_argument(
        "--recipes",
        default="paper,strong",
        metavar="NAMES",
        help=f"some of {', '.join(RECIPES)}; ablations are run with the first (%(default)s)",
    )
    cells.add_argument("--fraction", metavar="F,F", help="shares of each class to train on (0.01)")
    cells.add_argument("--train-pixels", metavar="N,N", help="numbers of pixels to train on, of all classes together")
    cells.add_argument("--val-fraction", type=float, default=0.01, help="share of each class to validate on (0.01)")
    cells.add_argument("--test-pixels", type=int, metavar="N", help="score at most N, drawn at random (all)")
    cells.add_argument(
        "--split", choices=SPLITS, default="random", help="spatial: no patch shared by train and test (%(default)s)"
    )
    cells.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="(%(default)s)")


def run(options: argparse.Namespace) -> int:
    """Work on the study until all of its cells are done, and end with a table."""
    if options.report_only:
        read_study(options.out)
        report_writer()(options.out)
    elif not _has_run(options):
        return INTERRUPTED
    rows = summarise_study(options.out)
    compared = compare_published(options.out)
    if compared is not None:
        write_text(options.out / "published.md", compared)
    if options.json is not None:
        _write_summary(options.json, read_study(options.out), rows)
    for row in rows:
        print(_line(row))
    if compared is not None:
        print(f"\n{compared}\n{options.out / 'published.md'}: the comparison with the paper")
    print(f"{options.out / 'report.html'}: the report; {options.out / 'report.md'}: the same as Markdown")
    sys.stdout.flush()
    return DONE


def _has_run(options: argparse.Namespace) -> bool:
    """Run what is not done yet; False where somebody stopped it."""
    study = read_options(options)
    last = CellsDone(0, len(plan_cells(study.asked)))
    done_before: int | None = None
    with Progress(last.total, "cells") as progress:

        def show(cells: CellsDone) -> None:
            nonlocal last, done_before
            is_news = cells.done > last.done or sys.stderr.isatty()
            last = cells
            done_before = cells.done if done_before is None else done_before
            if cells.done > done_before and is_news:  # time left is known once a cell is done
                progress.advance_to(cells.done, cells.note)

        try:
            run_study(study, show, progress.say)
        except KeyboardInterrupt:
            progress.say(f"stopped with {last.done} of {last.total} cells done; the same command goes on")
            return False
    return True


def read_options(options: argparse.Namespace) -> StudyOptions:
    """What the options ask for."""
    amounts = [Amount(fraction=share) for share in _numbers("--fraction", options.fraction, float)]
    amounts += [Amount(train_pixels=count) for count in _numbers("--train-pixels", options.train_pixels, int)]
    asked = Asked(
        seeds=options.seeds,
        variants=choose("--variants", options.variants, VARIANTS),
        ablations=choose("--ablations", options.ablations, ABLATIONS),
        baselines=choose("--baselines", options.baselines, BASELINES),
        recipes=choose_recipes(options.recipes),
        amounts=tuple(dict.fromkeys(amounts)) or (PAPERS_AMOUNT,),
    )
    return StudyOptions(
        files=_files(options),
        output=options.out,
        asked=asked,
        split=options.split,
        val_fraction=options.val_fraction,
        test_pixels=options.test_pixels,
        device=options.device,
        published=options.published,
    )


def _files(options: argparse.Namespace) -> LabelledFiles:
    needed = ("scene",) if options.published else ("scene", "labels")
    for name in needed:
        if getattr(options, name) is None:
            raise WrongUsage(f"--{name} is missing: name the file, or use --report-only")
    if options.published is None:
        return labelled_files(options)
    if options.classes or options.class_field:
        raise WrongUsage("--published knows the scene's classes: leave --classes and --class-field out")
    return find_files(PUBLISHED[options.published], options.scene, options.labels)


def _numbers(option: str, text: str | None, kind: Callable[[str], Number]) -> list[Number]:
    try:
        return [kind(part) for part in text.split(",")] if text is not None else []
    except ValueError as error:
        raise WrongUsage(f"{option} takes numbers with commas between them, not {text!r}") from error


def _write_summary(path: Path, study: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    try:
        path.write_text(json.dumps({**study, "rows": rows}, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputUnwritable(f"{path} cannot be written ({error.strerror}): choose another with --json") from error


def _line(row: dict[str, Any]) -> str:
    """A row of the summary for people, in percent."""
    amount = Amount(**row["amount"])
    labels = f"{amount.train_pixels} labels" if amount.fraction is None else f"{100 * amount.fraction:g} %"
    name = f"{row['group']}: {row['label']}" if row["group"] else row["label"]
    names = {"OA": "oa", "AA": "aa", "kappa": "kappa"}
    figures = [f"{word} {_spread(row['scores'][metric])}" for word, metric in names.items()]
    if row["mapped"]:
        figures.append(f"map OA {_spread(row['mapped']['oa'])}")
    seeds = f"{len(row['seeds'])} seed{'s' * (len(row['seeds']) != 1)}"
    return f"{row['part']:<9}  {name:<36}  {row['recipe'] or '-':<6}  {labels:>10}  {'  '.join(figures)}  ({seeds})"


def _spread(found: dict[str, float]) -> str:
    return f"{100 * found['mean']:.2f} ± {100 * found['sd']:.2f}"

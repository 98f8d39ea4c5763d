"""`hyperscene study`: the paper's experiments on any labelled scene, cell by cell, and a report."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from model.attention import VARIANTS
from service.cli import DONE, INTERRUPTED
from service.commands.data import add_data_options, labelled_files
from service.errors import OptionsUnusable, OutputUnwritable, WrongUsage
from service.progress import Progress
from training.datasets import LabelledFiles
from training.folder import note_work, read_study, write_text
from training.plan import ABLATIONS, BASELINES, INGREDIENTS, Amount, Asked, choose, choose_recipes, plan_cells
from training.published import PUBLISHED, find_files
from training.recipes import RECIPES
from training.splits import SPLITS
from training.study import CellsDone, StudyOptions, collection_writer, comparison_writer, report_writer, run_study
from training.summary import summarise_study
from training.train import require_writable

Number = TypeVar("Number", int, float)

PAPERS_AMOUNT = Amount(fraction=0.01)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `hyperscene study`."""
    data = parser.add_argument_group("data")
    add_data_options(data)
    for action in data._group_actions:
        action.required = False  # reports need no scene, --published finds the labels; run() asks otherwise
    data.add_argument(
        "--published",
        choices=PUBLISHED,
        help="--scene is this scene of the paper's, a folder or its cube: classes are known, and Table I is compared",
    )
    data.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the study's folder; the same command again goes on"
    )
    data.add_argument("--json", type=Path, metavar="FILE", help="write means and deviations over seeds as JSON too")
    data.add_argument("--title", metavar="TEXT", help="how the report calls the scene from now on (by its file)")
    data.add_argument("--report-only", action="store_true", help="write the report of what is there, and run nothing")
    data.add_argument(
        "--collect",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="write one report over these folders of studies into --out, and run nothing; --title is the report's",
    )

    cells = parser.add_argument_group("cells")
    cells.add_argument("--seeds", type=int, default=5, metavar="N", help="(%(default)s)")
    for option, names in (("variants", VARIANTS), ("ablations", ABLATIONS), ("baselines", BASELINES)):
        cells.add_argument(
            f"--{option}", default="all", metavar="NAMES", help=f"all, none, or some of {', '.join(names)} (all)"
        )
    cells.add_argument(
        "--ingredients",
        default="none",
        metavar="NAMES",
        help="what is taken out of the default recipe or put in, one thing at a time: all, none, or some of "
        f"{', '.join(INGREDIENTS)} (%(default)s)",
    )
    cells.add_argument(
        "--recipes",
        default="paper,strong",
        metavar="NAMES",
        help=f"some of {', '.join(RECIPES)}; ablations are run with the first (%(default)s)",
    )
    cells.add_argument("--fraction", metavar="F,F", help="shares of each class to train on (0.01)")
    cells.add_argument("--per-class", metavar="N,N", help="numbers of pixels of every class to train on")
    cells.add_argument("--train-pixels", metavar="N,N", help="numbers of pixels to train on, of all classes together")
    cells.add_argument("--val-fraction", type=float, default=0.01, help="share of each class to validate on (0.01)")
    cells.add_argument("--test-pixels", type=int, metavar="N", help="score at most N, drawn at random (all)")
    cells.add_argument(
        "--split",
        choices=SPLITS,
        default="random",
        help="spatial: test a patch or more from any training label (%(default)s)",
    )
    cells.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="(%(default)s)")


def run(options: argparse.Namespace) -> int:
    """Work on the study until all of its cells are done, and end with a table."""
    if options.title is not None:
        options.title = " ".join(options.title.split())
        if not options.title:
            raise WrongUsage("--title is empty: give some words, or leave it out")
    if options.json is not None:
        require_writable(options.json, "--json", "study.json")
    if options.collect:
        return _collect(options)
    if options.report_only:
        read_study(options.out)
        if options.title:
            note_work(options.out, title=options.title)
        report_writer()(options.out)
    elif not _has_run(options):
        return INTERRUPTED
    rows = summarise_study(options.out)
    compared = comparison_writer()(options.out)
    if compared is not None:
        write_text(options.out / "published.md", compared)
    if options.json is not None:
        _write_summary(options.json, {**read_study(options.out), "rows": rows})
    for row in rows:
        print(_line(row))
    if compared is not None:
        print(f"\n{compared}\n{options.out / 'published.md'}: the comparison with the paper")
    _tell_report(options.out)
    return DONE


def _collect(options: argparse.Namespace) -> int:
    """One report over several studies."""
    for name in ("scene", "labels", "published", "report_only"):
        if getattr(options, name):
            raise WrongUsage(f"--collect only reads what is there: leave --{name.replace('_', '-')} out")
    folders = list({folder.resolve(): folder for folder in options.collect}.values())
    studies = [read_study(folder) for folder in folders]
    if (options.out / "study.json").exists():
        raise OptionsUnusable(f"{options.out} holds a study with a report of its own: choose another folder with --out")
    collection_writer()(folders, options.out, options.title, command_line(options))
    summaries = [summarise_study(folder) for folder in folders]
    if options.json is not None:
        every = zip(folders, studies, summaries, strict=True)
        found = [{"folder": folder.resolve().name, **study, "rows": rows} for folder, study, rows in every]
        _write_summary(options.json, {"studies": found})
    for folder, rows in zip(folders, summaries, strict=True):
        print(f"{folder}:")
        for row in rows:
            print(_line(row))
    _tell_report(options.out)
    return DONE


def _tell_report(folder: Path) -> None:
    print(f"{folder / 'report.html'}: the report; {folder / 'report.md'}: the same as Markdown")
    sys.stdout.flush()


def command_line(options: argparse.Namespace) -> str:
    """The command as it was typed, with paths reduced to their last parts: where files lie is nobody's business."""
    values = [value for given in vars(options).values() for value in (given if isinstance(given, list) else [given])]
    paths = {value for value in values if isinstance(value, Path)}
    if options.classes and Path(options.classes).is_file():
        paths.add(Path(options.classes))

    def reduced(word: str) -> str:
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        path = Path(value)
        return f"{option}{equals}{path.name or path.resolve().name or value}" if value and path in paths else word

    return shlex.join(["hyperscene", *map(reduced, options.typed)])


def _has_run(options: argparse.Namespace) -> bool:
    """Run what is not done yet; False where somebody stopped it."""
    study = read_options(options)
    last: CellsDone | None = None
    with Progress(len(plan_cells(study.asked)), "cells") as progress:

        def show(cells: CellsDone) -> None:
            nonlocal last
            if last is None:
                progress.begin_at(cells.done, cells.note)
            elif cells.done > last.done or sys.stderr.isatty():
                progress.advance_to(cells.done, cells.note)
            last = cells

        try:
            run_study(study, show, progress.say)
        except KeyboardInterrupt:
            reached = f" with {last.done} of {last.total} cells done" if last else " before the first cell"
            progress.say(f"stopped{reached}; the same command goes on")
            return False
    return True


def read_options(options: argparse.Namespace) -> StudyOptions:
    """What the options ask for."""
    amounts = [Amount(fraction=share) for share in _numbers("--fraction", options.fraction, float)]
    amounts += [Amount(per_class=count) for count in _numbers("--per-class", options.per_class, int)]
    amounts += [Amount(train_pixels=count) for count in _numbers("--train-pixels", options.train_pixels, int)]
    asked = Asked(
        seeds=options.seeds,
        variants=choose("--variants", options.variants, VARIANTS),
        ablations=choose("--ablations", options.ablations, ABLATIONS),
        baselines=choose("--baselines", options.baselines, BASELINES),
        ingredients=choose("--ingredients", options.ingredients, INGREDIENTS),
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
        title=options.title,
        command=command_line(options),
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


def _write_summary(path: Path, document: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputUnwritable(f"{path} cannot be written ({error.strerror}): choose another with --json") from error


def _line(row: dict[str, Any]) -> str:
    """A row of the summary for people, in percent."""
    labels = Amount(**row["amount"]).label
    name = f"{row['group']}: {row['label']}" if row["group"] else row["label"]
    names = {"OA": "oa", "AA": "aa", "kappa": "kappa"}
    seeds = len(row["seeds"])
    figures = [f"{word} {_spread(row['scores'][metric], seeds)}" for word, metric in names.items()]
    if row["mapped"] and row["mapped"] != row["scores"]:  # not where a network is judged by its map
        figures.append(f"map OA {_spread(row['mapped']['oa'], seeds)}")
    over = f"{seeds} seed{'s' * (seeds != 1)}"
    return f"{row['part']:<11}  {name:<44}  {row['recipe'] or '-':<6}  {labels:>16}  {'  '.join(figures)}  ({over})"


def _spread(found: dict[str, float], seeds: int) -> str:
    """One seed has no deviation."""
    return f"{100 * found['mean']:.2f}" + (f" ± {100 * found['sd']:.2f}" if seeds > 1 else "")

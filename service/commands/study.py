"""`hyperscene study`: the paper's experiments on a labelled scene, and a report."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hyperscene.errors import OptionsUnusable, OutputUnwritable, WrongUsage
from hyperscene.json_text import json_text
from hyperscene.model.attention import VARIANTS
from hyperscene.progress import ProgressBar
from hyperscene.service.cli import DONE, INTERRUPTED
from hyperscene.service.commands.data import add_data_options, labelled_files
from hyperscene.training.baselines import BASELINES
from hyperscene.training.data.datasets import LabelledFiles
from hyperscene.training.data.splits import SPLITS
from hyperscene.training.fit.failures import explained
from hyperscene.training.fit.precision_health import CHOICES
from hyperscene.training.fit.recipes import RECIPES
from hyperscene.training.study.folder import (
    StudyFolder,
    note_work,
    pack_study,
    read_study,
    study_name,
    unpack_study,
)
from hyperscene.training.study.plan import (
    ABLATIONS,
    INGREDIENTS,
    Amount,
    CellSelection,
    choose,
    choose_recipes,
    plan_cells,
)
from hyperscene.training.study.published import PUBLISHED, find_files
from hyperscene.training.study.results import summarise_study
from hyperscene.training.study.run import (
    CellsDone,
    StudyOptions,
    collection_writer,
    report_writer,
    run_study,
)
from hyperscene.training.train import require_writable

Number = TypeVar("Number", int, float)

PAPERS_AMOUNT = Amount(fraction=0.01)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `hyperscene study`."""
    _add_folder_options(parser.add_argument_group("data"))
    _add_cell_options(parser.add_argument_group("cells"))


def _add_folder_options(data: argparse._ArgumentGroup) -> None:
    add_data_options(data)
    for action in data._group_actions:
        action.required = False  # reports need no scene, and --published finds the labels; _files() checks
    data.add_argument(
        "--published",
        choices=PUBLISHED,
        help="--scene is this scene of the paper, a folder or its cube; results are compared with the paper",
    )
    data.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the study's folder; the same command continues it"
    )
    data.add_argument("--json", type=Path, metavar="FILE", help="also write means and deviations over seeds as JSON")
    data.add_argument("--title", metavar="TEXT", help="the scene's name in the report (its file name)")
    data.add_argument(
        "--report-only", action="store_true", help="write the report of the finished cells, and run nothing"
    )
    data.add_argument(
        "--collect",
        type=Path,
        nargs="+",
        metavar="STUDY",
        help="write one report over these studies (folders or packed files) into --out, and run nothing",
    )
    data.add_argument("--pack", type=Path, metavar="FILE", help="also write the study into one .jsonl file")
    data.add_argument("--unpack", type=Path, metavar="FILE", help="first create --out from a packed study")


def _add_cell_options(cells: argparse._ArgumentGroup) -> None:
    cells.add_argument("--seeds", type=int, default=5, metavar="N", help="(%(default)s)")
    for option, names in (("variants", VARIANTS), ("ablations", ABLATIONS), ("baselines", BASELINES)):
        cells.add_argument(
            f"--{option}", default="all", metavar="NAMES", help=f"all, none, or some of {', '.join(names)} (all)"
        )
    cells.add_argument(
        "--ingredients",
        default="none",
        metavar="NAMES",
        help="changes of the default recipe, one at a time: all, none, or some of "
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
    cells.add_argument("--precision", choices=CHOICES, default="auto", help="of training steps (%(default)s)")


def run(options: argparse.Namespace) -> int:
    """Run the study until all cells are done, and print a table."""
    if options.title is not None:
        options.title = " ".join(options.title.split())
        if not options.title:
            raise WrongUsage("--title is empty: give a title, or leave it out")
    if options.json is not None:
        require_writable(options.json, "--json", "study.json")
    if options.pack is not None:
        require_writable(options.pack, "--pack", "study.jsonl")
    if options.collect:
        return _collect(options)
    if options.unpack and not StudyFolder(options.out).study.exists():  # the same command continues
        unpack_study(options.unpack, options.out)
    if options.report_only:
        read_study(options.out)
        if options.title:
            note_work(options.out, title=options.title)
        report_writer()(options.out)
    elif not _run_cells(options):
        return INTERRUPTED
    if options.pack:
        pack_study(options.out, options.pack)
    rows = summarise_study(options.out)
    if options.json is not None:
        _write_summary(options.json, {**read_study(options.out), "rows": rows})
    for row in rows:
        print(_line(row))
    _print_report_paths(options.out)
    return DONE


def _collect(options: argparse.Namespace) -> int:
    """Write one report over several studies."""
    for name in ("scene", "labels", "published", "report_only", "pack", "unpack"):
        if getattr(options, name):
            raise WrongUsage(f"--collect runs nothing: leave out --{name.replace('_', '-')}")
    folders = list({folder.resolve(): folder for folder in options.collect}.values())
    studies = [read_study(folder) for folder in folders]
    if (options.out / "study.json").exists():
        raise OptionsUnusable(f"{options.out} holds a study with its own report: choose another folder with --out")
    collection_writer()(folders, options.out, options.title, command_line(options))
    summaries = [summarise_study(folder) for folder in folders]
    if options.json is not None:
        every = zip(folders, studies, summaries, strict=True)
        found = [{"folder": study_name(folder), **study, "rows": rows} for folder, study, rows in every]
        _write_summary(options.json, {"studies": found})
    for folder, rows in zip(folders, summaries, strict=True):
        print(f"{folder}:")
        for row in rows:
            print(_line(row))
    _print_report_paths(options.out)
    return DONE


def _print_report_paths(folder: Path) -> None:
    print(f"{folder / 'report.html'}: the report; {folder / 'report.md'}: its tables as Markdown")
    sys.stdout.flush()


def command_line(options: argparse.Namespace) -> str:
    """The command as typed, with paths reduced to file names, so that the report reveals no folders."""
    values = [value for given in vars(options).values() for value in (given if isinstance(given, list) else [given])]
    paths = {value for value in values if isinstance(value, Path)}
    if options.classes and Path(options.classes).is_file():
        paths.add(Path(options.classes))

    def reduced(word: str) -> str:
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        path = Path(value)
        return f"{option}{equals}{path.name or path.resolve().name or value}" if value and path in paths else word

    return shlex.join(["hyperscene", *map(reduced, options.typed)])


def _run_cells(options: argparse.Namespace) -> bool:
    """Run the cells that are not done; False if it was stopped."""
    study = read_options(options)
    last: CellsDone | None = None
    with ProgressBar(len(plan_cells(study.selection)), "cells") as progress:

        def show(cells: CellsDone) -> None:
            nonlocal last
            if last is None:
                progress.begin_at(cells.done, cells.note)
            elif cells.done > last.done or sys.stderr.isatty():
                progress.advance_to(cells.done, cells.note)
            last = cells

        try:
            with explained("the study", study.output / "study.log"):
                run_study(study, show, progress.print_line)
        except KeyboardInterrupt:
            reached = f" with {last.done} of {last.total} cells done" if last else " before the first cell"
            progress.print_line(f"stopped{reached}; the same command continues")
            return False
    return True


def read_options(options: argparse.Namespace) -> StudyOptions:
    """The options as StudyOptions."""
    amounts = [Amount(fraction=share) for share in _numbers("--fraction", options.fraction, float)]
    amounts += [Amount(per_class=count) for count in _numbers("--per-class", options.per_class, int)]
    amounts += [Amount(train_pixels=count) for count in _numbers("--train-pixels", options.train_pixels, int)]
    selection = CellSelection(
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
        selection=selection,
        split=options.split,
        val_fraction=options.val_fraction,
        test_pixels=options.test_pixels,
        device=options.device,
        precision=options.precision,
        published=options.published,
        title=options.title,
        command=command_line(options),
    )


def _files(options: argparse.Namespace) -> LabelledFiles:
    needed = ("scene",) if options.published else ("scene", "labels")
    for name in needed:
        if getattr(options, name) is None:
            raise WrongUsage(f"--{name} is missing: give the file, or use --report-only")
    if options.published is None:
        return labelled_files(options)
    if options.classes or options.class_field:
        raise WrongUsage("--published defines the classes: leave --classes and --class-field out")
    return find_files(PUBLISHED[options.published], options.scene, options.labels)


def _numbers(option: str, text: str | None, kind: Callable[[str], Number]) -> list[Number]:
    try:
        return [kind(part) for part in text.split(",")] if text is not None else []
    except ValueError as error:
        raise WrongUsage(f"{option} takes numbers with commas between them, not {text!r}") from error


def _write_summary(path: Path, document: dict[str, Any]) -> None:
    try:
        path.write_text(json_text(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputUnwritable(f"{path} cannot be written ({error.strerror}): choose another with --json") from error


def _line(row: dict[str, Any]) -> str:
    """A row of the printed summary, in percent."""
    labels = Amount(**row["amount"]).label
    name = f"{row['group']}: {row['label']}" if row["group"] else row["label"]
    names = {"OA": "oa", "AA": "aa", "kappa": "kappa"}
    seeds = len(row["seeds"])
    scores = [f"{word} {_spread(row['scores'][metric], seeds)}" for word, metric in names.items()]
    if row["mapped"] and row["mapped"] != row["scores"]:  # unless the scores are those of the map
        scores.append(f"map OA {_spread(row['mapped']['oa'], seeds)}")
    over = f"{seeds} seed{'s' * (seeds != 1)}"
    return f"{row['part']:<11}  {name:<44}  {row['recipe'] or '-':<6}  {labels:>16}  {'  '.join(scores)}  ({over})"


def _spread(found: dict[str, float], seeds: int) -> str:
    """A mean and its deviation; one seed has none."""
    return f"{100 * found['mean']:.2f}" + (f" ± {100 * found['sd']:.2f}" if seeds > 1 else "")

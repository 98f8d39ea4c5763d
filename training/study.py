"""A study: runs its cells one by one, each into a finished file, alone or together with other processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from service import bench
from service.errors import BundleUnfaithful, OptionsUnusable, OutputUnwritable
from training.cells import recipe_of, run_cell
from training.datasets import LabelledFiles, LabelledScene, load_labelled_scene
from training.fit import choose_device
from training.folder import FORMAT, LOCK_POLL_S, StudyFolder, claimed, note_work, read_study, write_arrays, write_json
from training.plan import SEPARATION_PX, Amount, Asked, Cell, plan_cells, reaches_over
from training.published import PUBLISHED, load_published
from training.recipes import Recipe
from training.splits import Split, SplitName, split_labels, split_warnings
from training.summary import read_cells
from training.teacher import RememberingTeacher

POLL_S = 2.0  # between looks at cells that other processes work on


@dataclass(frozen=True)
class StudyOptions:
    """What `hyperscene study` is asked for."""

    files: LabelledFiles
    output: Path
    asked: Asked = field(default_factory=Asked)
    split: SplitName = "random"
    val_fraction: float = 0.01
    test_pixels: int | None = None
    device: str = "auto"
    published: str | None = None  # one of the paper's scenes, whose layout the files must have
    title: str | None = None  # how the report calls the scene; None leaves it as it is
    command: str | None = None  # as it was typed, for the record

    def load(self) -> LabelledScene:
        """The scene with its labels."""
        if self.published is not None:
            return load_published(PUBLISHED[self.published], self.files)
        return load_labelled_scene(self.files)


@dataclass(frozen=True)
class CellsDone:
    """What a progress bar shows: how many cells have a file, whoever wrote it, and what is worked on."""

    done: int
    total: int
    note: str = ""


def run_study(
    options: StudyOptions,
    report: Callable[[CellsDone], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Run every cell that has no file yet, and write the report."""
    _require_usable(options)
    write_report = report_writer()
    cells = plan_cells(options.asked)
    scene = options.load()
    splits, teach = Splits(options, scene), RememberingTeacher()
    for cell in cells:
        splits.of(cell)  # one that cannot be drawn is refused now, not hours later
    folder = open_study(options, scene)
    for warning in (*scene.warnings, *_warnings(options), *splits.warnings(), *_stale_warnings(cells, folder)):
        say(f"warning: {warning}")
    done = len(cells) - len(folder.pending(cells))
    say(f"{options.output}: {done} of {len(cells)} cells are done")

    def work(cell: Cell, note: Callable[[str], None]) -> None:
        finished = run_cell(cell, scene, splits.of(cell), options.device, note, options.test_pixels, teach)
        if finished.arrays is not None:
            write_arrays(folder.arrays(cell), finished.arrays)
        write_json(folder.cell(cell), finished.document)

    failed = work_through(cells, folder, work, report, say)
    write_report(options.output)
    if failed:
        names = ", ".join(cell.id for cell in failed)
        raise BundleUnfaithful(f"{len(failed)} of {len(cells)} cells failed and were left out: {names}")


def _require_usable(options: StudyOptions) -> None:
    asked = options.asked
    if asked.seeds < 1:
        raise OptionsUnusable(f"--seeds must be at least 1, not {asked.seeds}")
    if options.test_pixels is not None and options.test_pixels < 1:
        raise OptionsUnusable(f"--test-pixels must be at least 1, not {options.test_pixels}")
    for amount in asked.amounts:
        if amount.fraction is not None and not 0 < amount.fraction < 1:
            raise OptionsUnusable(f"--fraction must lie between 0 and 1, not at {amount.fraction}")
        if amount.train_pixels is not None and amount.train_pixels < 2:
            raise OptionsUnusable(f"--train-pixels must be at least 2, not {amount.train_pixels}")
        if amount.per_class is not None and amount.per_class < 1:
            raise OptionsUnusable(f"--per-class must be at least 1, not {amount.per_class}")
    if not (asked.variants or asked.ablations or asked.baselines or asked.ingredients):
        raise OptionsUnusable(
            "nothing is asked for: give some of --variants, --ablations, --baselines and --ingredients"
        )
    choose_device(options.device)


def _warnings(options: StudyOptions) -> list[str]:
    """What a reader of the tables should know: all cells share a split, which keeps the default patches apart."""
    asked = [*options.asked.ablations, *options.asked.ingredients]
    too_near = ", ".join(name for name in asked if reaches_over(name))
    if options.split == "random" or not too_near:
        return []
    return [f"train and test lie {SEPARATION_PX} px apart, so that patches of {too_near} overlap: they are flattered"]


def _stale_warnings(cells: list[Cell], folder: StudyFolder) -> list[str]:
    """Finished cells whose recipe was another than it is now: a table that mixes them compares nothing."""
    settings = {cell["id"]: cell.get("settings") for cell in read_cells(folder.path)}
    networks = [cell for cell in cells if cell.recipe and cell.id in settings]
    stale = {cell.recipe or "" for cell in networks if not _is_by(settings[cell.id], recipe_of(cell))}
    return [
        f"some finished cells were made with other settings of the recipe {recipe}, or do not say with which: delete "
        f"{folder.path / 'cells' / f'*-{recipe}-*'} to have them made anew"
        for recipe in sorted(stale)
    ]


def _is_by(settings: dict[str, Any] | None, recipe: Recipe) -> bool:
    """Whether settings that were written down are a recipe's; a setting that is newer had its default."""
    try:
        return settings is not None and Recipe(**settings) == recipe
    except TypeError:  # a setting that there is no longer
        return False


def work_through(
    cells: list[Cell],
    folder: StudyFolder,
    work: Callable[[Cell, Callable[[str], None]], None],
    report: Callable[[CellsDone], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    poll_s: float = POLL_S,
) -> list[Cell]:
    """Work on every cell that has no file and that nobody else works on, until all have one; gives those that failed.

    A cell fails alone where its network cannot be exported; whatever else goes wrong would go wrong in all.
    """
    failed: list[Cell] = []

    def show(cell: Cell | None, note: str = "") -> None:
        done = len(cells) - len(folder.pending(cells))
        report(CellsDone(done, len(cells), f"{cell.id if cell else ''} {note}".strip()))

    has_told = False
    while pending := [cell for cell in folder.pending(cells) if cell not in failed]:
        has_worked = False
        for cell in pending:
            with claimed(folder.lock(cell), folder.cell(cell)) as is_ours:
                if is_ours:
                    show(cell)
                    try:
                        work(cell, partial(show, cell))
                    except BundleUnfaithful as error:
                        say(f"{cell.id} failed: {error}")
                        failed.append(cell)
                    show(cell)
                    has_worked = True
        if not has_worked:
            if not has_told:
                say(f"waiting for the last {len(pending)} cells, which other processes work on")
            has_told = True
            show(None, "others are at work")
            time.sleep(poll_s)
    show(None)
    return failed


def open_study(options: StudyOptions, scene: LabelledScene) -> StudyFolder:
    """The study's folder, made now or by an earlier call; refuses one that was made for something else."""
    folder = StudyFolder(options.output)
    described = describe_study(options, scene)
    try:
        (folder.path / "cells").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputUnwritable(
            f"the folder {folder.path} cannot be made ({error.strerror}): choose another with --out"
        ) from error
    while not folder.study.exists():  # two processes may begin at once: one writes, the other waits and compares
        with claimed(folder.study_lock, folder.study) as is_ours:
            if is_ours:
                write_json(folder.study, described)
            else:
                time.sleep(LOCK_POLL_S)
    _require_same(described, read_study(folder.path))
    note_work(folder.path, options.command, describe_machine(options.device), options.title)
    return folder


def describe_machine(device: str) -> dict[str, Any]:
    """What computes, for those who compare hours."""
    found = {**bench.machine(), "threads": torch.get_num_threads()}
    if choose_device(device).type == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
    return {name: found[name] for name in ("processor", "cores", "threads", "gpu") if name in found}


def describe_study(options: StudyOptions, scene: LabelledScene) -> dict[str, Any]:
    """What all cells of a folder have in common."""
    rows, cols, bands = scene.cube.shape
    counts = np.bincount(scene.labels.ravel(), minlength=len(scene.legend) + 1)
    return {
        "format": FORMAT,
        "scene": {
            "name": scene.name,
            "labels": options.files.labels.name,
            "rows": rows,
            "cols": cols,
            "bands": bands,
            "digest": scene.digest,
            "class_names": [entry.name for entry in scene.legend],
            "class_colors": [entry.color for entry in scene.legend],
            "class_pixels": counts[1:].tolist(),
        },
        "split": options.split,
        "val_fraction": options.val_fraction,
        "test_pixels": options.test_pixels,
        "published": options.published,
        "code_version": version("hyperscene"),
    }


def _require_same(described: dict[str, Any], found: dict[str, Any]) -> None:
    """Cells may be added to a study only where they can be compared with those it has."""
    scene, other = described["scene"], found.get("scene", {})
    differing = [
        ("--scene or --labels", scene["digest"] == other.get("digest")),
        ("--classes", scene["class_names"] == other.get("class_names")),
        ("--split", described["split"] == found.get("split")),
        ("--val-fraction", described["val_fraction"] == found.get("val_fraction")),
        ("--test-pixels", described["test_pixels"] == found.get("test_pixels")),
    ]
    names = [name for name, is_same in differing if not is_same]
    if names:
        raise OptionsUnusable(
            f"the folder holds a study of {other.get('name')} with the {found.get('split')} split that was made with "
            f"another {', '.join(names)}: repeat its options to go on with it, or choose another folder with --out"
        )


class Splits:
    """The split of an amount and a seed, the same for every network and baseline, so that they can be paired."""

    def __init__(self, options: StudyOptions, scene: LabelledScene) -> None:
        self._options = options
        self._scene = scene
        self._drawn: dict[tuple[Amount, int], Split] = {}

    def of(self, cell: Cell) -> Split:
        """The split, with all of its test pixels."""
        key = (cell.amount, cell.seed)
        if key not in self._drawn:
            self._drawn[key] = self._draw(cell.amount, cell.seed)
        return self._drawn[key]

    def warnings(self) -> list[str]:
        """What the splits that were drawn lack; what is the same with several seeds is said once."""
        labels, names = self._scene.labels, [entry.name for entry in self._scene.legend]
        seeds_of: dict[tuple[Amount, str], list[str]] = {}
        for (amount, seed), split in self._drawn.items():
            for warning in split_warnings(labels, names, split, amount.train_pixels, amount.per_class):
                seeds_of.setdefault((amount, warning), []).append(str(seed))
        return [
            f"{amount.label}, seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}: {warning}"
            for (amount, warning), seeds in seeds_of.items()
        ]

    def _draw(self, amount: Amount, seed: int) -> Split:
        options, labels = self._options, self._scene.labels
        return split_labels(
            labels,
            options.split,
            amount.fraction or 0.0,
            options.val_fraction,
            seed,
            SEPARATION_PX,
            amount.train_pixels,
            amount.per_class,
        )


def report_writer() -> Callable[[Path], None]:
    """What writes report.html and report.md from a study's files."""
    return _report_module().write_report


def collection_writer() -> Callable[[Sequence[Path], Path, str | None, str | None], None]:
    """The same for several studies in one report, into a folder of its own, with a title and the command that asked."""
    return _report_module().write_collection


def comparison_writer() -> Callable[[Path], str | None]:
    """What sets a study of one of the paper's scenes beside the paper's tables, in Markdown."""
    return _report_module().published_page


def _report_module() -> ModuleType:
    """The report is imported late, since it draws with matplotlib."""
    try:
        return import_module("training.report")
    except ModuleNotFoundError as error:
        raise OptionsUnusable(f"the report needs the package {error.name}: pip install 'hyperscene[train]'") from error

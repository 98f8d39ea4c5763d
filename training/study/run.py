"""Run the cells of a study, each into its own file, alone or together with other processes."""

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

from hyperscene.errors import BundleUnfaithful, OptionsUnusable
from hyperscene.service.mapping import benchmark
from hyperscene.training.data.datasets import LabelledFiles, LabelledScene, load_labelled_scene
from hyperscene.training.data.splits import Split, SplitName, split_labels, split_warnings
from hyperscene.training.fit.compute import Compute, choose_compute
from hyperscene.training.fit.export import require_onnxruntime
from hyperscene.training.fit.label_propagation import PropagationCache
from hyperscene.training.fit.network import CPU
from hyperscene.training.fit.recipes import Recipe
from hyperscene.training.study.cells import recipe_of, run_cell
from hyperscene.training.study.folder import (
    FORMAT,
    LOCK_POLL_S,
    StudyFolder,
    claimed,
    make_folder,
    note_work,
    read_cells,
    read_study,
    write_json,
)
from hyperscene.training.study.plan import SEPARATION_PX, Amount, Cell, CellSelection, crosses_separation, plan_cells
from hyperscene.training.study.published import PUBLISHED, load_published

POLL_S = 2.0  # between checks for cells that other processes run


@dataclass(frozen=True)
class StudyOptions:
    """The options of `hyperscene study`."""

    files: LabelledFiles
    output: Path
    selection: CellSelection = field(default_factory=CellSelection)
    split: SplitName = "random"
    val_fraction: float = 0.01
    test_pixels: int | None = None
    device: str = "auto"
    precision: str = "auto"
    published: str | None = None  # one of the paper's scenes, whose layout the files must have
    title: str | None = None  # the scene's name in the report; None keeps the present one
    command: str | None = None  # as it was typed, for the record

    def load(self) -> LabelledScene:
        """The scene with its labels."""
        if self.published is not None:
            return load_published(PUBLISHED[self.published], self.files)
        return load_labelled_scene(self.files)


@dataclass(frozen=True)
class CellsDone:
    """Progress: how many cells have a file, from any process, and what runs now."""

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
    compute = choose_compute(options.device, options.precision, say)
    require_onnxruntime()
    write_report = report_writer()
    cells = plan_cells(options.selection)
    scene = options.load()
    splits, propagate_labels = Splits(options, scene), PropagationCache()
    for cell in cells:
        splits.of(cell)  # a split that cannot be drawn is refused now, not hours later
    folder = open_study(options, scene, compute)
    for warning in (*scene.warnings, *_warnings(options), *splits.warnings(), *_stale_warnings(cells, folder)):
        say(f"warning: {warning}")
    done = len(cells) - len(folder.pending(cells))
    say(f"{options.output}: {done} of {len(cells)} cells are done")

    def work(cell: Cell, note: Callable[[str], None]) -> None:
        document = run_cell(cell, scene, splits.of(cell), compute, note, options.test_pixels, propagate_labels)
        write_json(folder.cell(cell), document)

    failed = work_through(cells, folder, work, report, say)
    write_report(options.output)
    if failed:
        names = ", ".join(cell.id for cell in failed)
        raise BundleUnfaithful(f"{len(failed)} of {len(cells)} cells failed and were left out: {names}")


def _require_usable(options: StudyOptions) -> None:
    selection = options.selection
    if selection.seeds < 1:
        raise OptionsUnusable(f"--seeds must be at least 1, not {selection.seeds}")
    if options.test_pixels is not None and options.test_pixels < 1:
        raise OptionsUnusable(f"--test-pixels must be at least 1, not {options.test_pixels}")
    for amount in selection.amounts:
        if amount.fraction is not None and not 0 < amount.fraction < 1:
            raise OptionsUnusable(f"--fraction must lie between 0 and 1, not at {amount.fraction}")
        if amount.train_pixels is not None and amount.train_pixels < 2:
            raise OptionsUnusable(f"--train-pixels must be at least 2, not {amount.train_pixels}")
        if amount.per_class is not None and amount.per_class < 1:
            raise OptionsUnusable(f"--per-class must be at least 1, not {amount.per_class}")
    if not (selection.variants or selection.ablations or selection.baselines or selection.ingredients):
        raise OptionsUnusable(
            "no cell is selected: give some of --variants, --ablations, --baselines and --ingredients"
        )


def _warnings(options: StudyOptions) -> list[str]:
    """Warn of patches larger than the distance between training and test pixels."""
    changes = [*options.selection.ablations, *options.selection.ingredients]
    too_near = ", ".join(name for name in changes if crosses_separation(name))
    if options.split == "random" or not too_near:
        return []
    return [
        f"train and test lie {SEPARATION_PX} px apart, so that patches of {too_near} overlap: their scores are too high"
    ]


def _stale_warnings(cells: list[Cell], folder: StudyFolder) -> list[str]:
    """Warn of finished cells that were made with other settings of their recipe: tables would mix the two."""
    settings = {cell["id"]: cell.get("settings") for cell in read_cells(folder.path)}
    networks = [cell for cell in cells if cell.recipe and cell.id in settings]
    stale = {cell.recipe or "" for cell in networks if not _matches_recipe(settings[cell.id], recipe_of(cell))}
    return [
        f"some finished cells were made with other or unknown settings of the recipe {recipe}: delete "
        f"{folder.path / 'cells' / f'*-{recipe}-*'} to run them again"
        for recipe in sorted(stale)
    ]


def _matches_recipe(settings: dict[str, Any] | None, recipe: Recipe) -> bool:
    """Whether stored settings are those of the recipe; settings that are missing had their defaults."""
    try:
        return settings is not None and Recipe(**settings) == recipe
    except TypeError:  # a setting that no longer exists
        return False


def work_through(
    cells: list[Cell],
    folder: StudyFolder,
    work: Callable[[Cell, Callable[[str], None]], None],
    report: Callable[[CellsDone], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    poll_s: float = POLL_S,
) -> list[Cell]:
    """Run every cell that has no file and that no other process runs, until all have one; return those that failed.

    Only a network that cannot be exported fails alone; any other error would occur in all cells and ends the study.
    """
    failed: list[Cell] = []

    def show(cell: Cell | None, note: str = "") -> None:
        done = len(cells) - len(folder.pending(cells))
        report(CellsDone(done, len(cells), f"{cell.id if cell else ''} {note}".strip()))

    has_said = False
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
            if not has_said:
                say(f"waiting for the last {len(pending)} cells, which other processes run")
            has_said = True
            show(None, "waiting for other processes")
            time.sleep(poll_s)
    show(None)
    return failed


def open_study(options: StudyOptions, scene: LabelledScene, compute: Compute = CPU) -> StudyFolder:
    """Create or reopen the study's folder; refuse one that was made with other options."""
    folder = StudyFolder(options.output)
    described = study_document(options, scene)
    make_folder(folder)
    while not folder.study.exists():  # of two processes that start together, one writes and the other waits
        with claimed(folder.study_lock, folder.study) as is_ours:
            if is_ours:
                write_json(folder.study, described)
            else:
                time.sleep(LOCK_POLL_S)
    _require_same(described, read_study(folder.path))
    note_work(folder.path, options.command, describe_machine(compute), options.title)
    return folder


def describe_machine(compute: Compute) -> dict[str, Any]:
    """The hardware, for comparing run times."""
    found = {**benchmark.machine(), "threads": torch.get_num_threads()}
    if compute.device.type == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
    return {name: found[name] for name in ("processor", "cores", "threads", "gpu") if name in found}


def study_document(options: StudyOptions, scene: LabelledScene) -> dict[str, Any]:
    """What all cells of a study have in common."""
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
        "commands": [],
        "machines": [],
        "title": None,
    }


def _require_same(described: dict[str, Any], found: dict[str, Any]) -> None:
    """Refuse options whose cells could not be compared with those in the folder."""
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
            f"another {', '.join(names)}: repeat its options to continue it, or choose another folder with --out"
        )


class Splits:
    """The split of each amount and seed, shared by all networks and baselines so that tests can be paired."""

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
        """Warnings of the splits drawn so far; one that several seeds have in common is given once."""
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
    """The function that writes report.html and report.md of a study."""
    return _report_module().write_report


def collection_writer() -> Callable[[Sequence[Path], Path, str | None, str | None], None]:
    """The function that writes one report over several studies."""
    return _report_module().write_collection


def _report_module() -> ModuleType:
    """Import the report late, because it needs matplotlib."""
    try:
        return import_module("hyperscene.training.study.report")
    except ModuleNotFoundError as error:
        raise OptionsUnusable(f"the report needs the package {error.name}: pip install 'hyperscene[study]'") from error

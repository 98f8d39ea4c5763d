"""A study: its cells, each run once, also by several processes; its files; continuing a stopped run."""

from __future__ import annotations

import fcntl
import json
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from hyperscene.errors import BundleUnfaithful, OptionsUnusable, OutputUnwritable, WrongUsage
from hyperscene.model.architecture import ModelConfig
from hyperscene.model.attention import VARIANTS
from hyperscene.training.baselines import BASELINES
from hyperscene.training.data.datasets import LabelledFiles, LabelledScene
from hyperscene.training.data.splits import split_labels
from hyperscene.training.fit.compute import Compute
from hyperscene.training.fit.recipes import RECIPES, separation_px
from hyperscene.training.study import cells as cells_module
from hyperscene.training.study import run as study_module
from hyperscene.training.study.cells import add_noise, default_config, fit_cell, recipe_of, run_cell
from hyperscene.training.study.folder import (
    StudyFolder,
    decode_arrays,
    note_work,
    pack_study,
    read_cells,
    read_study,
    unpack_study,
)
from hyperscene.training.study.inspection import choose_attention_pixels, make_bundle, rgb_image
from hyperscene.training.study.plan import (
    ABLATIONS,
    INGREDIENTS,
    Amount,
    Cell,
    CellSelection,
    choose,
    choose_recipes,
    plan_cells,
)
from hyperscene.training.study.results import summarise_study
from hyperscene.training.study.run import CellsDone, Splits, StudyOptions, open_study, run_study, work_through
from tests import scenes
from tests.command_line import cli_command, refusal, run, run_here
from tests.studies import SyntheticStudy

ONE_PERCENT = Amount(fraction=0.01)
CELL_KEYS = {
    "id", "part", "name", "label", "group", "recipe", "amount", "seed", "split", "scores", "confusion", "mapped",
    "calibration", "chosen", "weights", "seconds", "settings", "judged_by", "label_propagation", "precision",
    "code_version", "cached_seconds", "sources",
}  # fmt: skip


NO_STUDY = "holds no study (no study.json): give a folder that `hyperscene study` was run with as --out"


@pytest.fixture
def files(tmp_path: Path) -> LabelledFiles:
    """A scene of 24 x 22 pixels on disk."""
    scene = scenes.labelled_scene()
    np.save(tmp_path / "scene.npy", scene.cube)
    np.save(tmp_path / "labels.npy", scene.labels)
    return LabelledFiles(tmp_path / "scene.npy", tmp_path / "labels.npy")


@pytest.fixture
def options(files: LabelledFiles, tmp_path: Path) -> StudyOptions:
    """Two quick baselines over two seeds."""
    selection = CellSelection(2, (), (), ("logistic_regression", "svm"), ("paper",), (Amount(fraction=0.05),))
    return StudyOptions(files, tmp_path / "study", selection, device="cpu")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of one small layer that learn for an epoch."""
    small = {"patch_px": 8, "width": 16, "depth": 1, "heads": 2, "mlp_width": 16}

    def config(scene: LabelledScene, change: dict | None = None) -> ModelConfig:
        return default_config(scene, small | (change or {}))

    recipes = {name: replace(recipe, epochs=1) for name, recipe in RECIPES.items()}
    monkeypatch.setattr(cells_module, "RECIPES", recipes)
    monkeypatch.setattr(cells_module, "default_config", config)


def a_split(scene: LabelledScene):
    return split_labels(scene.labels, "random", 0.02, 0.02, 0, separation_px(default_config(scene), RECIPES["strong"]))


def baseline(seed: int) -> Cell:
    return Cell("baselines", "svm", None, ONE_PERCENT, seed)


# the plan


def test_the_paper_s_tables_are_planned():
    selection = CellSelection(seeds=5)
    parts = Counter(cell.part for cell in plan_cells(selection))
    assert parts == {"inspection": 1, "variants": 11 * 2 * 5, "baselines": 7 * 5, "ablations": 19 * 5}


def test_table_two_has_the_paper_s_rows():
    groups = Counter(ablation.group for ablation in ABLATIONS.values())
    assert groups == {  # without the default network's row in each but the last
        "Normalization": 3, "Squaring strategy": 3, "Positional encoding": 2, "Head number": 2, "Encoder depth": 2,
        "Embedding dimension": 2, "Patch size": 2, "Spectral noise": 3,
    }  # fmt: skip


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_changes_one_thing(name, scene):
    default, changed = (
        default_config(scene),
        default_config(scene, Cell("ablations", name, "paper", ONE_PERCENT, 0).change),
    )
    differing = [key for key in vars(default) if getattr(default, key) != getattr(changed, key)]
    assert len(differing) == (ABLATIONS[name].noise_db is None)


def test_ids_are_unique_and_name_files():
    amounts = (Amount(fraction=0.01), Amount(fraction=0.00001), Amount(train_pixels=100), Amount(per_class=5))
    ids = [cell.id for cell in plan_cells(CellSelection(seeds=2, amounts=amounts))]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z]+-[a-z0-9_]+-[a-z]+-[fnc][0-9.]+-s\d+", found) for found in ids)
    assert "variants-cosine_squared-paper-f0.01-s0" in ids
    assert "baselines-svm-none-n100-s1" in ids
    assert "baselines-svm-none-c5-s1" in ids


@pytest.mark.parametrize(
    ("amount", "label"),
    [
        (Amount(fraction=0.005), "0.5 %"),
        (Amount(train_pixels=1), "1 label"),
        (Amount(train_pixels=100), "100 labels"),
        (Amount(per_class=5), "5 labels a class"),
    ],
)
def test_an_amount_says_what_it_is_and_comes_back_from_its_record(amount, label):
    assert amount.label == label
    assert Amount(**amount.record()) == amount


def test_ablations_bring_the_default_network_along():
    cells = plan_cells(
        CellSelection(1, (), ("heads_2",), (), ("strong", "paper"), (Amount(train_pixels=9), ONE_PERCENT))
    )
    assert [cell.id for cell in cells] == ["variants-cosine_squared-strong-n9-s0", "ablations-heads_2-strong-n9-s0"]


def test_ingredients_bring_the_default_recipe_along():
    cells = plan_cells(
        CellSelection(1, (), (), (), ("paper",), (Amount(per_class=5),), ("no_pseudo_labels", "dropout"))
    )
    assert [f"{cell.part}-{cell.name}" for cell in cells] == [
        "variants-cosine_squared",
        "ingredients-no_pseudo_labels",
        "ingredients-dropout",
    ]
    assert {(cell.recipe, cell.amount.id) for cell in cells} == {("strong", "c5")}


@pytest.mark.parametrize("name", INGREDIENTS)
def test_an_ingredient_changes_one_setting_of_the_recipe(name):
    cell = Cell("ingredients", name, "strong", ONE_PERCENT, 0)
    changed = recipe_of(cell)
    differing = [key for key, value in vars(RECIPES["strong"]).items() if getattr(changed, key) != value]
    assert len(differing) == 1


def test_a_part_is_whole_for_a_seed_before_the_next():
    seeds = [
        cell.seed for cell in plan_cells(CellSelection(seeds=3, ablations=(), baselines=())) if cell.part == "variants"
    ]
    assert seeds == sorted(seeds)


def test_names_are_chosen_in_their_own_order():
    assert choose("--variants", "cosine,cosine_squared", VARIANTS) == ("cosine_squared", "cosine")
    assert choose("--variants", "none", VARIANTS) == ()
    assert choose("--variants", "all", VARIANTS) == tuple(VARIANTS)


def test_an_unknown_name_is_refused_with_those_known():
    with pytest.raises(
        WrongUsage, match="--baselines does not accept 'knn': use all, none, or some of logistic_regression,"
    ):
        choose("--baselines", "knn", BASELINES)


def test_recipes_keep_the_order_of_the_option():
    assert choose_recipes("strong,paper") == ("strong", "paper")
    with pytest.raises(WrongUsage, match="does not accept 'none'"):
        choose_recipes("none")


# cells, and who works on them


def write_done(folder: StudyFolder):
    return lambda cell, note: folder.cell(cell).write_text("{}")


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    (tmp_path / "cells").mkdir()
    return StudyFolder(tmp_path)


def test_finished_cells_are_not_run_again(folder):
    cells = [baseline(0), baseline(1)]
    folder.cell(cells[0]).write_text("{}")
    worked = []
    work_through(cells, folder, lambda cell, note: (worked.append(cell), write_done(folder)(cell, note)))
    assert worked == cells[1:]


def test_several_workers_share_the_cells_and_run_each_once(folder):
    cells, worked, seen = [baseline(seed) for seed in range(40)], [], []

    def work(cell, note):
        worked.append(cell)
        time.sleep(0.002)
        write_done(folder)(cell, note)

    def take_part():
        work_through(cells, folder, work, lambda shown: seen.append(shown.done), poll_s=0.01)

    threads = [threading.Thread(target=take_part) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert Counter(worked) == Counter(cells)
    assert max(seen) == len(cells)
    assert not list(folder.path.glob("cells/*.lock"))


def test_the_lock_of_a_dead_process_is_taken(folder):
    cell = baseline(0)
    folder.lock(cell).touch()  # as a process that was killed leaves it
    work_through([cell], folder, write_done(folder))
    assert folder.cell(cell).exists()
    assert not folder.lock(cell).exists()


def test_cells_of_others_are_waited_for_and_counted(folder):
    cell, said, shown = baseline(0), [], []
    with folder.lock(cell).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def finish(_: str) -> None:
            said.append(_)
            folder.cell(cell).write_text("{}")

        work_through([cell], folder, pytest.fail, shown.append, finish, poll_s=0.01)
    assert said == ["waiting for the last 1 cells, which other processes run"]
    assert shown[-1] == CellsDone(1, 1)


def test_a_cell_that_fails_leaves_nothing(folder):
    cell = baseline(0)

    def fail(cell, note):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work_through([cell], folder, fail)
    assert not list(folder.path.glob("cells/*"))


# a whole study


def test_a_study_leaves_a_file_for_every_cell_and_a_report(options):
    shown, said = [], []
    run_study(options, shown.append, said.append)
    cells = [json.loads(path.read_text()) for path in sorted((options.output / "cells").iterdir())]
    assert [cell["id"] for cell in cells] == [
        "baselines-logistic_regression-none-f0.05-s0", "baselines-logistic_regression-none-f0.05-s1",
        "baselines-svm-none-f0.05-s0", "baselines-svm-none-f0.05-s1",
    ]  # fmt: skip
    assert all(set(cell) == CELL_KEYS for cell in cells)
    assert said == [f"{options.output}: 0 of 4 cells are done"]
    assert shown[-1] == CellsDone(4, 4)
    assert (options.output / "report.html").exists()
    assert (options.output / "report.md").exists()


def test_a_cell_records_its_label_amount_and_scores(options):
    run_study(options)
    cell = json.loads((options.output / "cells" / "baselines-svm-none-f0.05-s1.json").read_text())
    assert cell["label"] == "SVM"
    assert cell["amount"] == {"fraction": 0.05}
    assert np.sum(cell["confusion"]) == cell["scores"]["pixels"] == cell["split"]["test"]
    assert_allclose(np.trace(cell["confusion"]) / np.sum(cell["confusion"]), cell["scores"]["oa"], atol=1e-6)


def test_a_study_continues_where_it_stopped(options):
    run_study(options)
    files = {path: path.stat().st_mtime_ns for path in (options.output / "cells").iterdir()}
    said = []
    run_study(replace(options, selection=replace(options.selection, seeds=3)), say=said.append)
    assert said == [f"{options.output}: 4 of 6 cells are done"]
    assert all(path.stat().st_mtime_ns == changed for path, changed in files.items())
    assert len(list((options.output / "cells").iterdir())) == 6


@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"split": "spatial"}, "--split"),
        ({"val_fraction": 0.1}, "--val-fraction"),
        ({"test_pixels": 9}, "--test-pixels"),
    ],
)
def test_a_folder_of_another_study_is_refused(change, option, options, scene):
    open_study(options, scene)
    with pytest.raises(OptionsUnusable, match=f"made with another {option}: repeat its options.*--out"):
        open_study(replace(options, **change), scene)


def test_a_folder_of_another_scene_is_refused(options, scene):
    open_study(options, scene)
    with pytest.raises(OptionsUnusable, match=r"a study of made .* another --scene or --labels"):
        open_study(options, scenes.labelled_scene(noise=0.06))


def test_a_damaged_study_is_refused_with_the_remedy(options, scene):
    open_study(options, scene)
    (options.output / "study.json").write_text("{")
    with pytest.raises(OptionsUnusable, match="delete it and run the same command again"):
        open_study(options, scene)


def test_a_file_in_the_folder_s_place_is_refused(options, scene):
    options.output.write_text("")
    with pytest.raises(OutputUnwritable, match="choose another with --out"):
        open_study(options, scene)


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"seeds": 0}, "--seeds must be at least 1, not 0"),
        ({"amounts": (Amount(fraction=1.5),)}, "--fraction must lie between 0 and 1, not at 1.5"),
        ({"amounts": (Amount(train_pixels=1),)}, "--train-pixels must be at least 2, not 1"),
        ({"amounts": (Amount(per_class=0),)}, "--per-class must be at least 1, not 0"),
        ({"baselines": ()}, "no cell is selected"),
    ],
)
def test_unusable_options_are_refused_before_files_are_read(selection, message, options):
    options = replace(options, files=LabelledFiles(Path("nowhere"), Path("nowhere")))
    with pytest.raises(OptionsUnusable, match=message):
        run_study(replace(options, selection=replace(options.selection, **selection)))


def test_every_cell_of_a_seed_and_an_amount_has_the_same_split(options, scene):
    splits = Splits(options, scene)
    first = splits.of(Cell("variants", "cosine", "paper", ONE_PERCENT, 3))
    again = Splits(options, scene).of(baseline(3))
    other = splits.of(baseline(4))
    assert (first.train == again.train).all()
    assert (first.test == again.test).all()
    assert not np.array_equal(first.test, other.test)


def test_the_number_of_test_pixels_does_not_change_the_training(options, scene, monkeypatch):
    cell = Cell("variants", "cosine", "strong", ONE_PERCENT, 0)
    split = Splits(options, scene).of(cell)
    learnt = []

    def spy(scene, split, *rest):
        learnt.append(len(split.test))
        raise BundleUnfaithful("seen enough")

    monkeypatch.setattr("hyperscene.training.study.cells.fit_cell", spy)
    for limit in (None, 50):
        with pytest.raises(BundleUnfaithful):
            run_cell(cell, scene, split, Compute(), test_pixels=limit)
    assert learnt == [len(split.test)] * 2
    judged = run_cell(baseline(0), scene, split, Compute(), test_pixels=50)["scores"]["pixels"]
    assert judged == 50


def test_a_network_that_cannot_be_exported_does_not_end_the_study(options, tmp_path):
    folder = StudyFolder(tmp_path)
    (tmp_path / "cells").mkdir()
    cells = [baseline(seed) for seed in range(3)]
    said = []

    def work(cell, note):
        if cell.seed == 1:
            raise BundleUnfaithful("differs")
        folder.cell(cell).write_text("{}")

    assert work_through(cells, folder, work, say=said.append) == [cells[1]]
    assert [folder.cell(cell).exists() for cell in cells] == [True, False, True]
    assert said == [f"{cells[1].id} failed: differs"]


def test_an_amount_can_be_a_number_of_training_pixels(options, scene):
    split = Splits(options, scene).of(Cell("baselines", "svm", None, Amount(train_pixels=30), 0))
    assert len(split.train) == 30


def test_classes_without_test_pixels_are_warned_of_once_for_all_seeds(options, scene):
    labels = scene.labels.copy()
    labels[labels == 1] = 0
    labels[0, :2] = 1  # one trains and one validates
    splits = Splits(replace(options, val_fraction=0.5), replace(scene, labels=labels))
    for seed in range(2):
        splits.of(Cell("baselines", "svm", None, Amount(per_class=1), seed))
    (warning,) = splits.warnings()
    assert warning.startswith(
        f"1 label a class, seeds 0, 1: no test pixels of {scene.legend[0].name}: the scores leave"
    )


def test_a_spatial_study_warns_of_larger_patches(options):
    spatial = replace(options, split="spatial", selection=replace(options.selection, ablations=("patch_24", "heads_2")))
    warnings = study_module._warnings(spatial)
    assert warnings == [
        "train and test lie 17 px apart, so that patches of patch_24 overlap: their scores are too high"
    ]


# noise


def test_noise_has_the_given_strength(scene):
    noise = add_noise(scene, 20, seed=0).cube - scene.cube
    power = np.square(scene.cube).mean(axis=(0, 1)) / np.square(noise).mean(axis=(0, 1))
    assert_allclose(10 * np.log10(power), 20, atol=1)


def test_a_noisy_scene_is_standardised_by_its_own_values(scene):
    noisy = add_noise(scene, 10, seed=0)
    assert_allclose(noisy.standardised().std(axis=(0, 1)), 1, atol=1e-4)
    assert (noisy.labels == scene.labels).all()
    assert noisy.digest != scene.digest


def test_noise_follows_from_the_seed(scene):
    assert add_noise(scene, 10, 0).digest == add_noise(scene, 10, 0).digest
    assert add_noise(scene, 10, 0).digest != add_noise(scene, 10, 1).digest


def test_invalid_pixels_stay_at_the_mean(scene):
    valid = scene.valid.copy()
    valid[:3] = False
    noisy = add_noise(replace(scene, valid=valid), 10, 0)
    assert (noisy.cube[~valid] == noisy.band_mean).all()


# networks


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_no_room_for_temporary_files_names_the_remedy(scene, monkeypatch, tmp_path):
    fitted = fit_cell(
        scene, a_split(scene), default_config(scene), Cell("variants", "cosine", "strong", ONE_PERCENT, 0), Compute()
    )
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.raises(OutputUnwritable, match="set TMPDIR to another folder"):
        make_bundle(fitted, scene, "cell")


@pytest.mark.usefixtures("quick")
def test_a_network_s_cell_is_as_a_baseline_s_and_says_its_weights(scene):
    notes = []
    cell = Cell("variants", "cosine", "paper", Amount(fraction=0.02), 0)
    document = run_cell(cell, scene, a_split(scene), Compute(), notes.append)
    assert set(document) == CELL_KEYS
    assert document["weights"] > 1000
    assert document["mapped"] is None
    assert document["judged_by"] == "patches"
    assert document["settings"]["name"] == "paper"
    assert document["settings"]["epochs"] == 1
    assert notes == ["epoch 1/1", "scoring"]


@pytest.mark.usefixtures("quick")
def test_cells_of_an_older_recipe_are_warned_of(files, tmp_path):
    selection = CellSelection(1, ("cosine",), (), (), ("paper",), (Amount(fraction=0.02),))
    options = StudyOptions(files, tmp_path / "study", selection)
    for epochs, is_warned in ((1, False), (1, False), (2, True)):
        said: list[str] = []
        cells_module.RECIPES["paper"] = replace(RECIPES["paper"], epochs=epochs)
        run_study(options, say=said.append)
        warnings = [
            line for line in said if "unknown settings of the recipe paper" in line and "cells/*-paper-*" in line
        ]
        assert bool(warnings) is is_warned
    (path,) = (tmp_path / "study" / "cells").glob("*-paper-*.json")
    document = json.loads(path.read_text())
    for settings in (None, document["settings"] | {"a_removed_setting": 1}):
        path.write_text(json.dumps(document | {"settings": settings}))
        said = []
        run_study(options, say=said.append)
        assert any("other or unknown settings" in line for line in said)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_network_that_predicts_whole_patches_is_scored_by_its_map(scene, monkeypatch):
    monkeypatch.setattr(cells_module, "CALIBRATION_PIXELS", 7)
    cell = Cell("variants", "cosine", "strong", Amount(fraction=0.02), 0)
    document = run_cell(cell, scene, a_split(scene), Compute())
    assert document["judged_by"] == "map"
    assert document["scores"] == document["mapped"]["scores"]
    assert document["label_propagation"]["oa"] > 0.9  # an easy scene
    assert document["scores"]["pixels"] == document["split"]["test"]
    assert sum(map(sum, document["confusion"])) == document["split"]["test"]


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", ["patch_24", "noise_20"])
def test_ablations_run(name, scene):
    document = run_cell(Cell("ablations", name, "strong", Amount(fraction=0.02), 0), scene, a_split(scene), Compute())
    assert document["group"] == ABLATIONS[name].group
    assert document["scores"]["pixels"] == document["split"]["test"]


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", ["no_pseudo_labels", "pooled_head", "no_spectral_path", "dropout"])
def test_ingredients_run_and_say_what_they_are(name, scene):
    cell = Cell("ingredients", name, "strong", Amount(fraction=0.02), 0)
    document = run_cell(cell, scene, a_split(scene), Compute())
    assert document["group"] == INGREDIENTS[name].group
    assert document["settings"] == asdict(recipe_of(cell))
    assert (document["label_propagation"] is None) is (name == "no_pseudo_labels")
    assert document["judged_by"] == "map"


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_the_default_network_has_scores_of_its_map_too(scene):
    document = run_cell(
        Cell("variants", "cosine_squared", "paper", Amount(fraction=0.02), 0), scene, a_split(scene), Compute()
    )
    assert document["mapped"]["stride"] == 4
    assert document["mapped"]["blend"] == "angle"
    assert document["mapped"]["scores"]["pixels"] == document["split"]["test"]


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_an_inspection_holds_the_arrays_of_its_figures(scene):
    split = a_split(scene)
    cell = Cell("inspection", "cosine_squared", "strong", Amount(fraction=0.02), 0)
    document = run_cell(cell, scene, split, Compute())
    arrays = decode_arrays(document)
    rows, cols = scene.labels.shape
    shapes = {name: array.shape for name, array in arrays.items()}
    tested = len(split.test)
    assert shapes == {
        "truth": (rows, cols), "split": (rows, cols), "classes": (rows, cols), "confidence": (rows, cols),
        "rgb": (rows, cols, 3), "feature_classes": (tested,), "embedding": (tested, 2),
        "attention_pixels": (4, 2), "attention": (4, 1, 2, 8, 8), "attention_patches": (4, 8, 8, 3),
    }  # fmt: skip
    assert_allclose(arrays["attention"].sum(axis=(-2, -1)), 1, rtol=1e-5)
    assert [int((arrays["split"] == value).sum()) for value in (1, 2, 3)] == [
        len(split.train), len(split.validation), len(split.test),
    ]  # fmt: skip
    row, col = arrays["attention_pixels"][0]
    assert (arrays["attention_patches"][0, 4, 4] == arrays["rgb"][row, col]).all()
    assert {(way["stride"], way["blend"]) for way in document["speed"]} == {
        (1, "linear"), (1, "none"), (2, "linear"), (4, "linear"), (8, "linear"),  # the head `token` has no angles
    }  # fmt: skip
    assert set(document["seconds"]) == {"fit", "predict", "map"}
    unblended = next(way for way in document["speed"] if way["blend"] == "none")
    by_patches = [(share, count) for _, share, count in document["reliability"]["before"]]
    single = sum(share * count for share, count in by_patches) / tested
    assert_allclose(unblended["oa"], single, atol=0.01)  # the same patches by another engine
    assert unblended["patches"] == rows * cols
    assert sum(count for _, _, count in document["reliability"]["before"]) == tested


def test_pixels_to_look_at_lie_at_the_border_of_their_class(scene):
    chosen = choose_attention_pixels(scene, np.argwhere(scene.labels > 0), patch_px=8, seed=0)
    assert sorted(scene.labels[tuple(chosen.T)]) == [1, 2, 3, 4]
    border = np.minimum(np.abs(chosen[:, 0] - 11.5), np.abs(chosen[:, 1] - 10.5))
    assert (border < 4).all()


def test_an_rgb_image_leaves_invalid_pixels_black(scene):
    valid = scene.valid.copy()
    valid[0, 0] = False
    image = rgb_image(replace(scene, valid=valid))
    assert (image[0, 0] == 0).all()
    assert (image[valid] > 0).all()


# the command


def study_command(files: LabelledFiles, output: Path, *more: object) -> list[object]:
    return ["study", "--scene", files.scene, "--labels", files.labels, "--out", output, "--variants", "none",
            "--ablations", "none", "--fraction", "0.05", "--device", "cpu", *more]  # fmt: skip


@pytest.mark.slow
def test_the_command_prints_means_over_seeds_and_writes_json(files, tmp_path):
    output = tmp_path / "study"
    done = run_here(*study_command(files, output, "--baselines", "svm", "--seeds", 2, "--json", tmp_path / "s.json"))
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert re.fullmatch(r"baselines +SVM +-  +5 %  OA \S+ ± \S+  AA \S+ ± \S+  kappa \S+ ± \S+  \(2 seeds\)", first)
    assert last.startswith(f"{output}/report.html")
    written = json.loads((tmp_path / "s.json").read_text())
    assert written["split"] == "random"
    assert written["rows"] == summarise_study(output)
    assert written["rows"][0]["seeds"] == [0, 1]


@pytest.mark.slow
def test_a_report_can_be_made_again_without_the_scene(options):
    run_study(options)
    (options.output / "report.html").unlink()
    done = run_here("study", "--out", options.output, "--report-only")
    assert done.returncode == 0, done.stderr
    assert (options.output / "report.html").exists()


@pytest.mark.slow
def test_a_report_of_nothing_is_refused(tmp_path):
    said = refusal(run_here("study", "--out", tmp_path, "--report-only"))
    assert said.endswith(NO_STUDY)


@pytest.mark.slow
def test_a_study_remembers_commands_once_each_and_the_machine(files, tmp_path):
    output = tmp_path / "deep" / "study"
    command = study_command(files, output, "--baselines", "svm", "--seeds", 1, f"--json={tmp_path / 's.json'}")
    classes = tmp_path / "classes.txt"
    classes.write_text("".join(f"class {value}\n" for value in range(1, 5)))
    for more in ([], [], ["--title", "a/b c", "--classes", classes]):
        done = run_here(*command, *more)
        assert done.returncode == 0, done.stderr
    study = json.loads((output / "study.json").read_text())
    first = (
        "hyperscene study --scene scene.npy --labels labels.npy --out study --variants none --ablations none "
        "--fraction 0.05 --device cpu --baselines svm --seeds 1 --json=s.json"
    )
    assert study["commands"] == [first, f"{first} --title 'a/b c' --classes classes.txt"]
    (machine,) = study["machines"]
    assert machine["processor"]
    assert machine["cores"] >= 1
    assert machine["threads"] >= 1
    assert study["title"] == "a/b c"
    assert not list(output.glob("*.lock"))
    text = (output / "report.md").read_text()
    assert text.startswith("# Study of a/b c, random split")
    assert f"    {first}\n" in text
    assert str(tmp_path) not in text


@pytest.mark.slow
def test_a_title_is_changed_without_running_anything(options):
    run_study(options)
    said = run_here("study", "--out", options.output, "--report-only", "--title", " Fields  of wheat ")
    assert said.returncode == 0, said.stderr
    assert (options.output / "report.md").read_text().startswith("# Study of Fields of wheat, random split")
    run_study(options)  # says nothing of a title, and leaves it
    assert (options.output / "report.md").read_text().startswith("# Study of Fields of wheat, random split")


def test_a_packed_study_is_read_like_its_folder_and_unpacked_into_the_same(options, tmp_path):
    run_study(options)
    packed, unpacked = tmp_path / "study.jsonl", tmp_path / "unpacked"
    pack_study(options.output, packed)
    unpack_study(packed, unpacked)
    for path in (packed, unpacked):
        assert read_study(path) == read_study(options.output)
        assert read_cells(path) == read_cells(options.output)
    repeated = run_here("study", "--unpack", packed, "--out", unpacked, "--report-only")
    assert repeated.returncode == 0, repeated.stderr
    pack_study(unpacked, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == packed.read_bytes()
    with pytest.raises(OptionsUnusable, match="holds a study already"):
        unpack_study(packed, options.output)


def test_a_study_of_an_earlier_format_is_refused(options, scene):
    open_study(options, scene)
    path = options.output / "study.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 1}))
    with pytest.raises(OptionsUnusable, match="another version of hyperscene"):
        open_study(options, scene)


def test_several_processes_note_their_commands_at_once(options, scene):
    open_study(options, scene)
    threads = [threading.Thread(target=note_work, args=(options.output, f"command {n}")) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(json.loads((options.output / "study.json").read_text())["commands"]) == [
        f"command {n}" for n in range(8)
    ]


@pytest.fixture
def two_studies(options, tmp_path) -> list[Path]:
    """Folders of two finished studies."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder, split in zip(folders, ("random", "spatial"), strict=True):
        made = SyntheticStudy(folder, split=split, classes=("roof", "tree"), shape=(24, 24))
        made.add_table_one([ONE_PERCENT], ["strong"], 1, ("cosine_squared",))
    return folders


@pytest.mark.slow
def test_studies_are_collected_in_one_report(two_studies, tmp_path):
    output = tmp_path / "out"
    done = run_here("study", "--collect", *two_studies, two_studies[0], "--out", output, "--json", tmp_path / "s.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"{two_studies[0]}:"
    assert done.stdout.splitlines()[-1].startswith(f"{output}/report.html")
    text = (output / "report.md").read_text()
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == [
        "In short", "Indian pines, random split", "Indian pines, spatial split",
    ]  # fmt: skip
    assert "    hyperscene study --collect one two one --out out --json s.json\n" in text
    assert (output / "report.html").exists()
    found = json.loads((tmp_path / "s.json").read_text())["studies"]
    assert [(study["folder"], study["split"]) for study in found] == [("one", "random"), ("two", "spatial")]
    assert found[0]["rows"] == summarise_study(two_studies[0])


@pytest.mark.slow
def test_a_collection_with_a_folder_that_is_no_study_is_refused(two_studies, tmp_path):
    said = refusal(run_here("study", "--collect", *two_studies, tmp_path, "--out", tmp_path / "out"))
    assert said == f"hyperscene: {tmp_path} {NO_STUDY}"
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_collection_does_not_take_the_place_of_a_study_s_report(two_studies):
    said = refusal(run_here("study", "--collect", *two_studies, "--out", two_studies[0]))
    assert said.endswith("holds a study with its own report: choose another folder with --out")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--collect", "a", "--report-only"], "--collect runs nothing: leave out --report-only"),
        (["--title", " "], "--title is empty: give a title, or leave it out"),
        (["--fraction", "1,x"], "--fraction takes numbers with commas between them, not '1,x'"),
        (["--variants", "cosin"], "--variants does not accept 'cosin': use all, none, or some of cosine_squared,"),
        (["--labels", "l.npy"], "--scene is missing: give the file, or use --report-only"),
    ],
)
def test_wrong_usage_is_warned_in_a_line(more, message, tmp_path):
    has_scene = not {"--labels", "--collect"} & set(more)
    scene = ["--scene", "s.npy", "--labels", "l.npy"] if has_scene else []
    done = run_here("study", *scene, "--out", tmp_path / "study", *more)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_a_stopped_study_reports_its_progress_and_continues(files, tmp_path):
    output = tmp_path / "study"
    command = study_command(files, output, "--baselines", "random_forest")
    process = subprocess.Popen(
        cli_command(*command, "--seeds", "300"),
        stderr=subprocess.PIPE,
        text=True,
        # A shell lets background jobs ignore SIGINT, and the test run may be one.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    while not list(output.glob("cells/*.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    stopped = re.search(r"stopped with (\d+) of 300 cells done; the same command continues", said)
    assert stopped
    assert int(stopped[1]) == len(list(output.glob("cells/*.json")))
    assert not list(output.glob("cells/*.lock"))
    again = run(*command, "--seeds", "1")
    assert again.returncode == 0
    assert "1 of 1 cells are done" in again.stderr


@pytest.mark.slow
def test_a_summary_that_cannot_be_written_is_refused_before_any_work(files, tmp_path):
    output = tmp_path / "study"
    said = refusal(
        run_here(*study_command(files, output, "--baselines", "svm", "--json", tmp_path / "nowhere" / "s.json"))
    )
    assert "nowhere cannot be written" in said
    assert "choose another with --json" in said
    assert not output.exists()


@pytest.mark.slow
def test_two_processes_share_a_study(files, tmp_path):
    output = tmp_path / "study"
    baselines = "logistic_regression,random_forest,svm"
    command = cli_command(*study_command(files, output, "--seeds", 6, "--baselines", baselines))
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=240) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    assert answers[0][0] == answers[1][0]  # both end with all cells
    assert len(list(output.glob("cells/*.json"))) == len(list(output.glob("cells/*"))) == 18


@pytest.mark.slow
def test_a_folder_without_the_paper_s_scene_is_refused(tmp_path):
    said = refusal(run_here("study", "--published", "salinas", "--scene", tmp_path, "--out", tmp_path / "study"))
    assert "Salinas_corrected.mat" in said

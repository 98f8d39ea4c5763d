"""`hyperscene train` end to end: files in, bundle and table out, refusals in one line."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hyperscene.model.bundle import load_bundle
from tests.command_line import cli_command, refusal, run, run_here
from tests.products import EMIT_NM, write_emit
from tests.scenes import quadrants, spectra_of, write_tif

LABELS = quadrants(30, 26)
TINY = ["--depth", "1", "--width", "8", "--heads", "2", "--mlp-width", "8", "--patch", "4", "--fraction", "0.1"]


@pytest.fixture
def data(tmp_path):
    write_tif(tmp_path / "scene.tif", spectra_of(LABELS, 6), wavelengths_nm=np.linspace(450, 900, 6))
    write_tif(tmp_path / "labels.tif", LABELS)
    return tmp_path


def train(
    data: Path, *more: object, output: str = "bundle.onnx", run_command: Callable = run_here
) -> subprocess.CompletedProcess[str]:
    paths = ["--scene", data / "scene.tif", "--labels", data / "labels.tif", "-o", data / output]
    return run_command("train", *paths, *TINY, *more)


@pytest.mark.slow
def test_training_ends_with_a_table_and_a_bundle_that_checks_itself(data):
    done = train(data, "--epochs", 30, "--classes", "wheat,soil,water,road", "--baselines", run_command=run)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^wheat +\d+ +\d+\.\d\d", done.stdout, re.MULTILINE)
    assert re.search(r"OA \d+\.\d\d  AA \d+\.\d\d  kappa -?\d+\.\d\d", done.stdout)
    assert re.search(r"random forest on the same pixels: OA \d+\.\d\d", done.stdout)
    assert re.search(r"training 30/30 loss \d\.\d+ validation OA \d+\.\d", done.stderr)
    manifest = load_bundle(data / "bundle.onnx").manifest
    assert manifest.class_names == ["wheat", "soil", "water", "road"]
    record = manifest.training
    assert record["split"]["name"] == "random"
    assert (record["seed"], record["recipe"]["name"], record["data"]["scene"]) == (0, "strong", "scene.tif")
    assert f"OA {100 * record['scores']['oa']:.2f}" in done.stdout
    assert {path.name for path in data.iterdir()} == {"scene.tif", "labels.tif", "bundle.onnx"}

    scored = run(
        "evaluate",
        "--bundle",
        data / "bundle.onnx",
        "--scene",
        data / "scene.tif",
        "--labels",
        data / "labels.tif",
        "--json",
    )
    document = json.loads(scored.stdout)
    assert document["training_pixels_left_out"] == record["split"]["train"]
    assert document["pixels"] == record["split"]["test"] + record["split"]["validation"]
    assert abs(document["oa"] - record["scores"]["oa"]) < 0.05


@pytest.mark.slow
def test_a_bundle_records_the_sensor_and_date_of_its_scene_and_its_description(tmp_path):
    scene = write_emit(tmp_path / "emit", spectra_of(LABELS, len(EMIT_NM)))
    write_tif(tmp_path / "labels.tif", LABELS)
    output = tmp_path / "b.onnx"
    files = ["--scene", scene, "--labels", tmp_path / "labels.tif", "-o", output, "--mask", "none"]
    done = run_here("train", *files, *TINY, "--epochs", 1, "--description", "For a test.")
    assert done.returncode == 0, done.stderr
    document = json.loads(run_here("inspect", output, "--json").stdout)
    assert (document["sensor"], document["acquired"][:10]) == ("EMIT", "2022-08-15")
    shown = run_here("inspect", output).stdout
    assert "sensor        EMIT 2022-08-15" in shown
    assert "about         For a test." in shown


@pytest.mark.slow
def test_without_a_split_every_label_is_used_and_accuracy_is_estimated(data):
    labels = np.zeros_like(LABELS)
    for row, col in [(2, 2), (10, 8), (2, 15), (10, 22), (17, 2), (25, 8), (17, 15)]:
        labels[row : row + 3, col : col + 3] = LABELS[row : row + 3, col : col + 3]
    labels[25, 22] = 1  # should be 4
    write_tif(data / "labels.tif", labels)
    options = [option for option in TINY if option not in ("--fraction", "0.1")]
    files = ["--scene", data / "scene.tif", "--labels", data / "labels.tif"]
    done = run_here(
        "train", *files, "-o", data / "bundle.onnx", *options, "--epochs", 1, "--classes", "wheat,soil,water,road"
    )
    assert done.returncode == 0, done.stderr
    assert "learning from all 64 labelled pixels" in done.stderr
    assert re.search(r"^wheat +19 +\d+\.\d \(\d+ to \d+\)", done.stdout, re.MULTILINE)
    assert re.search(r"^OA \d+\.\d \(\d+ to \d+\) .*95 % intervals", done.stdout, re.MULTILINE)
    assert "class 'road' has 9 labelled pixels in one place: label some elsewhere" in done.stdout
    assert "1 label looks like a mistake, first 'wheat' at row 25, column 22" in done.stdout
    record = load_bundle(data / "bundle.onnx").manifest.training
    assert (record["split"]["name"], record["split"]["train"], record["split"]["test"]) == ("none", 64, 0)
    assert "scores" not in record
    assert record["cross_validation"]["far_from_labels"]["pixels"] == 55
    assert "by cross-validation of 55 labels" in run_here("inspect", data / "bundle.onnx").stdout
    scored = run_here("evaluate", "--bundle", data / "bundle.onnx", *files, "--classes", "wheat,soil,water,road")
    assert "trained on all 64 of these labels: score it on other labels" in refusal(scored)


@pytest.mark.slow
def test_the_protocol_of_the_paper_trains_on_one_percent_of_each_class(data):
    options = [option for option in TINY if option not in ("--fraction", "0.1")]
    files = ["--scene", data / "scene.tif", "--labels", data / "labels.tif", "-o", data / "bundle.onnx"]
    done = run_here("train", *files, *options, "--epochs", 1, "--protocol", "paper")
    assert done.returncode == 0, done.stderr
    split = load_bundle(data / "bundle.onnx").manifest.training["split"]
    assert (split["name"], split["fraction"], split["val_fraction"]) == ("random", 0.01, 0.01)
    assert split["train"] + split["validation"] + split["test"] == LABELS.size


@pytest.mark.slow
def test_a_seed_gives_the_same_bundle_twice(data):
    for output in ("first.onnx", "second.onnx"):
        assert train(data, "--epochs", 2, "--name", "same", output=output, run_command=run).returncode == 0
    assert (data / "first.onnx").read_bytes() == (data / "second.onnx").read_bytes()


@pytest.mark.slow
def test_a_spatial_split_is_named_in_the_manifest(data):
    options = ["--epochs", 1, "--split", "spatial", "--head", "token", "--test-pixels", 50]
    assert train(data, *options).returncode == 0
    manifest = load_bundle(data / "bundle.onnx").manifest
    assert manifest.training["scores"]["pixels"] == 50
    assert (manifest.training["split"]["name"], manifest.head) == ("spatial", "token")


@pytest.mark.slow
def test_evaluate_leaves_out_the_training_pixels_of_per_class(data):
    assert train(data, "--epochs", 1, "--per-class", 3).returncode == 0
    record = load_bundle(data / "bundle.onnx").manifest.training
    classes = len(load_bundle(data / "bundle.onnx").manifest.class_names)
    assert (record["split"]["fraction"], record["split"]["per_class"]) == (None, 3)
    assert record["split"]["train"] == 3 * classes
    files = ["--bundle", data / "bundle.onnx", "--scene", data / "scene.tif", "--labels", data / "labels.tif"]
    judged = run_here("evaluate", *files, "--json")
    assert json.loads(judged.stdout)["training_pixels_left_out"] == 3 * classes


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "dropout"), [([], 0.1), (["--dropout", "0"], 0.0), (["--dropout", "0.3"], 0.3)])
def test_a_given_dropout_is_used_even_with_pseudo_labels_from_spectra_only(data, asked, dropout):
    done = train(data, "--epochs", 1, "--per-class", 1, *asked)  # too few labels to see whether neighbours help
    assert "pseudo-labels from spectra only" in done.stderr + done.stdout
    assert load_bundle(data / "bundle.onnx").manifest.architecture["dropout"] == dropout


@pytest.mark.slow
def test_a_class_with_too_few_labels_is_named(data):
    done = train(data, "--epochs", 1, "--per-class", 400)
    assert done.returncode == 0
    assert re.search(r"warning: fewer than 400 training pixels for .*1 \(\d+\), ", done.stderr)
    assert "at most half of a class is used" in done.stderr


@pytest.mark.slow
def test_per_class_and_train_pixels_exclude_each_other(data):
    assert "not allowed with argument --per-class" in train(data, "--per-class", 3, "--train-pixels", 9).stderr


@pytest.mark.slow
def test_a_run_stopped_by_ctrl_c_resumes_to_the_same_bundle(data):
    options = ["--epochs", 40, "--name", "same"]
    assert train(data, *options, output="whole.onnx", run_command=run).returncode == 0
    files = ["--scene", data / "scene.tif", "--labels", data / "labels.tif", "-o", data / "cut.onnx"]
    checkpoint = data / "cut.onnx.checkpoint"
    process = subprocess.Popen(
        cli_command("train", *files, *TINY, *options),
        stderr=subprocess.PIPE,
        text=True,
        # A shell lets background jobs ignore SIGINT, and the test run may be one.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "repeat the command with --resume to continue" in errors
    assert "Traceback" not in errors
    assert not (data / "cut.onnx").exists()
    assert train(data, *options, "--resume", output="cut.onnx", run_command=run).returncode == 0
    assert (data / "cut.onnx").read_bytes() == (data / "whole.onnx").read_bytes()
    assert not checkpoint.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--classes", "a,b,c,d,e"], "class 'e' (value 5) of --classes has no labelled pixel"),
        (["--resume"], "start without --resume"),
        (["--device", "cuda"], "use --device cpu"),
        (["--heads", "3"], "must be a multiple of the number of heads"),
        (["--epochs", "0"], "--epochs must be at least 1"),
        (["--test-pixels", "0"], "--test-pixels must be at least 1"),
        (["--attention", "dot_product", "--normalise", "key"], "change cosine scores only"),
        (["--fraction", "1.5"], "--fraction must be at least 0 and below 1"),
        (["--fraction", "0.999"], "lower --fraction"),
        (["--seed", "-1"], "--seed must be between"),
        (["--seed", str(10**15)], "--seed must be between"),
        (["--classes", "x" * 300], "--classes cannot be read"),
        (["--wavelengths", "nowhere.txt"], "write one number per line"),
    ],
)  # fmt: skip
def test_options_that_cannot_work_are_refused_in_one_line(data, options, reason):
    assert reason in refusal(train(data, *options))
    assert {path.name for path in data.iterdir()} == {"scene.tif", "labels.tif"}


@pytest.mark.slow
def test_bad_data_is_refused_in_one_line(data):
    write_tif(data / "small.tif", LABELS[:5])
    np.save(data / "nan.npy", np.full((30, 26, 6), np.nan))
    for change, reason in (
        (["--labels", data / "small.tif"], "resample the labels to the scene's grid"),
        (["--scene", data / "nan.npy"], "--nan-is-nodata"),
        (["--scene", data / "nowhere.tif"], "there is no file"),
        (["--labels", data / "scene.tif"], "labels must be one band"),
    ):
        assert reason in refusal(train(data, *change))
    assert not (data / "bundle.onnx").exists()


@pytest.mark.slow
def test_an_output_that_cannot_be_written_is_refused_before_training(data):
    assert "create it, or choose another with -o" in refusal(train(data, output="missing/bundle.onnx"))
    assert "cannot be written" in refusal(train(data, output="/proc/bundle.onnx"))  # closed to root as well
    (data / "folder").mkdir()
    assert "is a folder" in refusal(train(data, output="folder"))


@pytest.mark.slow
def test_wrong_usage_exits_with_2():
    assert run_here("train").returncode == 2
    assert run_here("nonsense").returncode == 2
    assert run().returncode == 2
    assert run_here("--version").returncode == 0


def test_synth_and_evaluate_refuse_in_one_line(tmp_path):
    assert "use one of .tif" in refusal(run_here("synth", tmp_path / "scene.jpg"))
    assert "--snr-db must be between" in refusal(run_here("synth", tmp_path / "scene.tif", "--snr-db", "nan"))
    (tmp_path / "b.onnx").write_text("no bundle")
    evaluate = run_here("evaluate", "--bundle", tmp_path / "b.onnx", "--scene", "s.tif", "--labels", "l.tif")
    assert "not an ONNX file" in refusal(evaluate)

"""Fitting: the same weights for a seed, resumed runs, unseen test labels, memory, and the temperature afterwards."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from hyperscene.errors import OptionsUnusable, OutputUnwritable
from hyperscene.model.architecture import HEADS, ModelConfig, Transformer
from hyperscene.model.attention import VARIANTS
from hyperscene.training.baselines import score_baselines
from hyperscene.training.data.splits import split_labels
from hyperscene.training.fit import network as fitting
from hyperscene.training.fit import patches as patching
from hyperscene.training.fit.calibration import fit_temperature, negative_log_likelihood
from hyperscene.training.fit.compute import Compute, keep_freed_memory
from hyperscene.training.fit.label_propagation import propagate_labels
from hyperscene.training.fit.network import EpochReport, FitOptions, fit, predict
from hyperscene.training.fit.network import training_targets as targets_of
from hyperscene.training.fit.patches import PatchSource, draw_batches
from hyperscene.training.fit.recipes import RECIPES, RENAMED_SETTINGS, learning_rate
from tests import scenes

SMALL = {"bands": 6, "classes": 4, "patch_px": 4, "width": 8, "depth": 1, "heads": 2, "mlp_width": 8}
SCENE = scenes.labelled_scene(30, 28)
SPLIT = split_labels(SCENE.labels, "random", 0.1, 0.05, 0, 4)
CPU = torch.device("cpu")


def small(**changes) -> ModelConfig:
    return ModelConfig(**(SMALL | changes))


def recipe(name: str = "strong", **changes):
    return replace(RECIPES[name], **({"epochs": 4, "batch": 20} | changes))


def same_weights(first: Transformer, second: Transformer) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def test_the_paper_recipe_has_the_settings_of_the_paper():
    paper = RECIPES["paper"]
    assert (paper.learning_rate, paper.weight_decay, paper.batch, paper.epochs) == (3e-4, 2e-4, 128, 50)
    assert (paper.clip_norm, paper.label_smoothing) == (1.0, 0.05)
    assert (paper.one_cycle, paper.symmetries, paper.token_share) == (False, False, 1.0)


def test_a_seed_gives_the_same_weights_and_another_does_not():
    first, again, other = (fit(SCENE, SPLIT, small(), recipe(), seed).network for seed in (1, 1, 2))
    assert same_weights(first, again)
    assert not same_weights(first, other)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", RECIPES)
def test_every_head_learns_an_easy_scene_with_every_recipe(head, name):
    net = fit(SCENE, SPLIT, small(head=head), recipe(name, epochs=25, learning_rate=1e-2), 0).network
    found = predict(net, PatchSource(SCENE, 4, CPU), SPLIT.test)
    assert (found == SCENE.labels[tuple(SPLIT.test.T)]).mean() > 0.85


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", RECIPES)
def test_micro_batches_give_the_gradient_of_the_whole_batch(head, name, monkeypatch):
    weights = []
    for patches_at_once in (3, 1000):
        monkeypatch.setattr(patching, "CPU_TOKENS_AT_ONCE", patches_at_once * 16)
        # Dropout is drawn per call; without it both must take the same step.
        fitted = fit(SCENE, SPLIT, small(head=head, dropout=0.0), recipe(name, epochs=2), 0)
        weights.append(fitted.network.state_dict())
    for name, first in weights[0].items():
        torch.testing.assert_close(first, weights[1][name], atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_number_of_threads_does_not_change_the_weights(precision, monkeypatch):
    monkeypatch.setattr(patching, "CPU_TOKENS_AT_ONCE", 5 * 4)
    before, weights = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            compute = FitOptions(Compute(CPU, precision))
            weights.append(fit(SCENE, SPLIT, small(dropout=0.2), recipe("paper", epochs=2), 0, compute).network)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert same_weights(*weights)


@pytest.mark.parametrize("attention", VARIANTS)
def test_every_score_function_learns_in_bfloat16(attention):
    config, chosen = small(attention=attention), recipe(epochs=25, learning_rate=1e-2)
    net = fit(SCENE, SPLIT, config, chosen, 0, FitOptions(Compute(CPU, "bfloat16"))).network
    found = predict(net, PatchSource(SCENE, 4, CPU), SPLIT.test)
    assert (found == SCENE.labels[tuple(SPLIT.test.T)]).mean() > 0.85
    assert {weight.dtype for weight in net.parameters()} == {torch.float32}


@pytest.mark.parametrize("stop_after", [1, 3])
def test_a_resumed_run_ends_with_the_same_weights(tmp_path, stop_after):
    def stop(report: EpochReport) -> None:
        if report.epoch == stop_after:
            raise KeyboardInterrupt

    checkpoint = tmp_path / "run.checkpoint"
    chosen = recipe()
    undisturbed = fit(SCENE, SPLIT, small(), chosen, 0).network
    with pytest.raises(KeyboardInterrupt):
        fit(SCENE, SPLIT, small(), chosen, 0, FitOptions(checkpoint=checkpoint, report=stop))
    seen = []
    resumed = fit(
        SCENE, SPLIT, small(), chosen, 0, FitOptions(checkpoint=checkpoint, resume=True, report=seen.append)
    ).network
    assert same_weights(undisturbed, resumed)
    assert [report.epoch for report in seen] == list(range(stop_after + 1, 5))


def test_a_checkpoint_of_an_earlier_version_is_resumed(tmp_path):
    checkpoint = tmp_path / "run.checkpoint"
    fit(SCENE, SPLIT, small(), recipe(epochs=1), 0, FitOptions(checkpoint=checkpoint))
    state, today = torch.load(checkpoint, weights_only=True), {new: old for old, new in RENAMED_SETTINGS.items()}
    state["fingerprint"] = {today.get(name, name): value for name, value in state["fingerprint"].items()}
    torch.save(state, checkpoint)
    seen = []
    options = FitOptions(checkpoint=checkpoint, resume=True, report=seen.append)
    fit(SCENE, SPLIT, small(), recipe(epochs=1), 0, options)
    assert not seen


def test_a_checkpoint_of_other_options_is_refused_and_they_are_named(tmp_path):
    checkpoint = tmp_path / "run.checkpoint"
    fit(SCENE, SPLIT, small(), recipe(epochs=1), 0, FitOptions(checkpoint=checkpoint))
    with pytest.raises(OptionsUnusable, match="another epochs, seed: repeat its options"):
        fit(SCENE, SPLIT, small(), recipe(epochs=2), 5, FitOptions(checkpoint=checkpoint, resume=True))


def test_a_checkpoint_of_another_head_or_path_or_split_is_refused(tmp_path):
    checkpoint = tmp_path / "run.checkpoint"
    fit(SCENE, SPLIT, small(head="pooled"), recipe(epochs=1), 0, FitOptions(checkpoint=checkpoint))
    for config, split, part in (
        (small(head="token"), SPLIT, "head"),
        (small(head="pooled", spectral_path=True), SPLIT, "spectral_path"),
        (small(head="pooled"), replace(SPLIT, test=SPLIT.test[:50]), "split"),
    ):
        with pytest.raises(OptionsUnusable, match=f"another {part}: repeat its options"):
            fit(SCENE, split, config, recipe(epochs=1), 0, FitOptions(checkpoint=checkpoint, resume=True))


def test_a_missing_or_damaged_checkpoint_is_refused(tmp_path):
    checkpoint = tmp_path / "run.checkpoint"
    with pytest.raises(OptionsUnusable, match="found no checkpoint"):
        fit(SCENE, SPLIT, small(), recipe(), 0, FitOptions(checkpoint=checkpoint, resume=True))
    for content in (b"", b"rubbish"):
        checkpoint.write_bytes(content)
        with pytest.raises(OptionsUnusable, match="is damaged: delete it"):
            fit(SCENE, SPLIT, small(), recipe(), 0, FitOptions(checkpoint=checkpoint, resume=True))


def test_a_checkpoint_that_cannot_be_written_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(OutputUnwritable, match="cannot be written"):
        fit(SCENE, SPLIT, small(), recipe(epochs=1), 0, FitOptions(checkpoint=tmp_path / "missing" / "run.checkpoint"))
    with pytest.raises(OutputUnwritable, match="cannot be written"):
        fit(SCENE, SPLIT, small(), recipe(epochs=1), 0, FitOptions(checkpoint=tmp_path / ("x" * 253)))
    assert list(tmp_path.iterdir()) == []


def test_baselines_are_scored_on_the_given_pixels():
    scores = score_baselines(SCENE, SPLIT.train, SPLIT.test[:50], 0)
    assert {found.pixels for found in scores.values()} == {50}
    assert min(found.overall_accuracy for found in scores.values()) > 0.8


def test_one_cycle_rises_to_its_peak_and_falls_to_almost_nothing():
    strong = RECIPES["strong"]
    rates = [learning_rate(strong, step, 100) for step in range(100)]
    assert np.argmax(rates) == 30
    assert rates[30] == pytest.approx(strong.learning_rate)
    assert rates[0] == pytest.approx(strong.learning_rate / 25)
    assert rates[-1] < strong.learning_rate / 100
    assert {learning_rate(RECIPES["paper"], step, 100) for step in range(100)} == {3e-4}


def test_an_epoch_draws_every_training_pixel_once_with_its_label():
    source, targets = PatchSource(SCENE, 4, CPU), targets_of(SCENE, SPLIT)
    batches = list(draw_batches(source, torch.from_numpy(SPLIT.train), small(), recipe(pseudo_labels=False)))
    centers = torch.cat([batch.indices[:, 2, 2] for batch in batches])
    expected = SPLIT.train[:, 0] * SCENE.labels.shape[1] + SPLIT.train[:, 1]
    assert sorted(centers.tolist()) == sorted(expected.tolist())
    assert targets[centers].tolist() == (SCENE.labels.flatten()[centers].astype(int) - 1).tolist()


def test_the_token_head_is_supervised_by_training_pixels_only():
    source, targets = PatchSource(SCENE, 4, CPU), targets_of(SCENE, SPLIT)
    trained = set((SPLIT.train[:, 0] * SCENE.labels.shape[1] + SPLIT.train[:, 1]).tolist())
    labels_only = recipe(pseudo_labels=False)
    for batch in draw_batches(source, torch.from_numpy(SPLIT.train), small(head="token"), labels_only):
        supervised = targets[batch.indices] >= 0
        assert set(batch.indices[supervised].tolist()) <= trained
        assert supervised.flatten(1).any(dim=1).all()  # every patch contains the pixel it was drawn for
        assert not supervised.all()


def test_the_eight_symmetries_differ_and_keep_the_centre():
    indices = PatchSource(SCENE, 4, CPU).pixel_indices(torch.tensor([[12, 12]]).repeat(8, 1), torch.arange(8))
    assert len({tuple(patch.flatten().tolist()) for patch in indices}) == 8
    assert set(indices[:, 2, 2].tolist()) == {12 * 28 + 12}


@pytest.mark.parametrize("head", HEADS)
def test_sampled_tokens_are_distinct_and_contain_the_centre(head):
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        kept = patching.draw_tokens(small(head=head), recipe(token_share=0.5), generator)
        assert kept[0] == 2 * 4 + 2
        assert len(kept) == len(set(kept.tolist())) == 8
        assert set(kept.tolist()) <= set(range(16))
    assert patching.draw_tokens(small(head="token"), recipe(token_share=0.5, pseudo_labels=False), generator) is None
    assert patching.draw_tokens(small(head=head), recipe(token_share=1.0), generator) is None


def test_a_spectral_path_starts_from_logistic_regression_and_stays_frozen():
    config = small(spectral_path=True)
    torch.manual_seed(0)
    net = Transformer(config)
    fitting.fit_spectral_path(net, SCENE, SPLIT.train)
    found = predict(net, PatchSource(SCENE, 4, CPU), SPLIT.train)
    assert (found == SCENE.labels[tuple(SPLIT.train.T)]).mean() > 0.9
    trained = fit(SCENE, SPLIT, config, recipe(pseudo_labels=False), 0).network
    assert torch.equal(net.spectral_path.weight, trained.spectral_path.weight)
    assert trained.classifier.weight.abs().sum() > 0


def test_two_classes_have_a_spectral_path_too():
    scene = scenes.labelled_scene(20, 20, classes=2)
    split = split_labels(scene.labels, "random", 0.1, 0.0, 0, 4)
    net = fit(scene, split, small(classes=2, spectral_path=True), recipe(epochs=1), 0).network
    found = predict(net, PatchSource(scene, 4, CPU), split.test)
    assert (found == scene.labels[tuple(split.test.T)]).mean() > 0.9


@pytest.mark.parametrize("name", RECIPES)
def test_test_labels_do_not_influence_training(name):
    rows, cols = SPLIT.test.T
    labels = SCENE.labels.copy()
    labels[rows, cols] = labels[rows, cols] % 4 + 1
    other = replace(SCENE, labels=labels)
    first, second = (fit(scene, SPLIT, small(head="token"), recipe(name, epochs=2), 0) for scene in (SCENE, other))
    assert same_weights(first.network, second.network)
    assert (first.temperature, first.propagation) == (second.temperature, second.propagation)


@pytest.mark.parametrize(("fidelity_weight", "dropout"), [(math.inf, 0.1), (0.1, 0.0)])
def test_pseudo_labels_from_spectra_only_are_learned_with_dropout(fidelity_weight, dropout):
    def as_chosen(scene, split, seed):
        found = propagate_labels(scene, split, seed)
        return replace(found, settings=replace(found.settings, fidelity_weight=fidelity_weight))

    said = []
    options = FitOptions(say=said.append, propagate_labels=as_chosen)
    net = fit(SCENE, SPLIT, small(dropout=0.0), recipe(epochs=1), 0, options).network
    assert net.config.dropout == dropout
    assert {block.dropout.p for block in net.blocks} == {dropout}
    assert any("a dropout of 0.1" in line for line in said) == (dropout > 0)


def test_pixels_without_data_are_not_learned():
    """Invalid pixels hold the scene's mean, which a network must not learn as a class."""
    valid = SCENE.valid.copy()
    valid[:, :10] = False
    scene = replace(SCENE, valid=valid, labels=np.where(valid, SCENE.labels, 0))
    split = split_labels(scene.labels, "random", 0.1, 0.05, 0, 4)
    fitted = fit(scene, split, small(head="token", spectral_path=True), recipe(epochs=25), 0)
    found = predict(fitted.network, PatchSource(scene, 4, CPU), split.test)
    assert (found == scene.labels[tuple(split.test.T)]).mean() > 0.85


def drawn(temperature: float, pixels: int = 4000):
    """Logits and classes that are calibrated after division by `temperature`."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(pixels, 5)) * 3
    powers = np.exp(logits / temperature)
    shares = powers / powers.sum(axis=1, keepdims=True)
    truth = (generator.random((pixels, 1)) > shares.cumsum(axis=1)).sum(axis=1)
    return logits.astype(np.float32), truth


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_true_temperature_is_found(temperature):
    logits, truth = drawn(temperature)
    found = fit_temperature(logits, truth)
    assert found == pytest.approx(temperature, rel=0.1)
    assert negative_log_likelihood(logits, truth, found) <= negative_log_likelihood(logits, truth, 1.0)


def test_too_few_pixels_change_nothing():
    logits, truth = drawn(3.0, pixels=49)
    assert fit_temperature(logits, truth) == 1.0
    assert fit_temperature(np.empty((0, 5), np.float32), np.empty(0, int)) == 1.0


def test_the_temperature_of_an_errorless_network_is_bounded():
    logits, _ = drawn(1.0, pixels=60)
    truth = logits.argmax(axis=1)
    assert fit_temperature(logits, truth) == pytest.approx(0.3, rel=1e-3)


# Pages that the system had to hand out for five steps of the default network, after what is put in front.
COUNT = """
import resource
import torch
from hyperscene.model.architecture import ModelConfig, Transformer
torch.set_num_threads(1)
network, spectra = Transformer(ModelConfig(20, 4)), torch.rand(8, 256, 20)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def step():
    network.zero_grad()
    network.logits(spectra).sum().backward()
for _ in range(6):
    step()
before = faults()
for _ in range(5):
    step()
print(faults() - before)
"""
FIT = """
from tests.training.test_fit import SCENE, SPLIT, recipe, small
from hyperscene.training.fit.network import fit
fit(SCENE, SPLIT, small(), recipe("paper", epochs=1), 0)
"""


def faults_after(first: str = "") -> int:
    command = [sys.executable, "-c", first + COUNT]
    return int(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout)


@pytest.mark.slow
def test_steps_find_their_memory_where_others_left_it():
    if not keep_freed_memory():
        pytest.skip("the C library here is not glibc")
    assert faults_after(FIT) < faults_after() / 10

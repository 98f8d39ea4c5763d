"""Fitting a network to labelled patches, or to the pseudo-labels of a whole scene (knowledge distillation)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn import functional as F

from hyperscene.model.architecture import ModelConfig, Transformer, predicting_tokens
from hyperscene.service.mapping.prefetch import StageClock
from hyperscene.training.data.datasets import LabelledScene
from hyperscene.training.data.splits import Pixels, Split, draw_some
from hyperscene.training.fit.base_classifiers import logistic_regression
from hyperscene.training.fit.calibration import fit_temperature, fit_temperature_to
from hyperscene.training.fit.checkpoints import TrainingCheckpoint, fingerprint
from hyperscene.training.fit.compute import Compute, keep_freed_memory
from hyperscene.training.fit.cross_validation import CrossValidation
from hyperscene.training.fit.gradients import GradientPool, Part, gradient_pool
from hyperscene.training.fit.label_propagation import PropagateLabels, PseudoLabels, propagate_labels
from hyperscene.training.fit.patches import (
    Batch,
    PatchSource,
    draw_batches,
    gather_patches,
    micro_batch_size,
    patches_in_epoch,
    sample_tokens,
)
from hyperscene.training.fit.propagation_settings import PropagationSettings, sharpen
from hyperscene.training.fit.recipes import Recipe, learning_rate

CPU = Compute()
CALIBRATION_PIXELS = 256  # whose confidence is compared with that of the pseudo-labels
PROPAGATION, NETWORK = "label propagation", "network"  # stages
VALIDATIONS = 5  # validation accuracies reported over a run


@dataclass(frozen=True)
class Fitted:
    """A network, the temperature that its logits are divided by, and the pseudo-labels it learned from, if any."""

    network: Transformer
    temperature: float = 1.0
    pseudo_labels: PseudoLabels | None = None

    @property
    def validation(self) -> CrossValidation | None:
        """What cross-validation found, if no labels were set aside for testing."""
        return None if self.pseudo_labels is None else self.pseudo_labels.validation

    @property
    def propagation(self) -> PropagationSettings | None:
        """The settings that label propagation chose."""
        return None if self.pseudo_labels is None else self.pseudo_labels.settings


@dataclass(frozen=True)
class EpochReport:
    """What a progress bar shows after an epoch."""

    epoch: int
    epochs: int
    loss: float
    validation_oa: float | None
    seconds: float


@dataclass(frozen=True)
class FitOptions:
    """Device, checkpoint and callbacks of a fit; of these, only the precision of `compute` changes the weights."""

    compute: Compute = CPU
    checkpoint: Path | None = None  # written after every epoch
    resume: bool = False  # continue from the checkpoint
    report: Callable[[EpochReport], None] = lambda _: None
    say: Callable[[str], None] = lambda _: None
    clock: StageClock = field(default_factory=StageClock)  # seconds of label propagation and of the network
    validates: bool = True  # report the accuracy on the validation pixels; nothing is decided by it
    propagate_labels: PropagateLabels = propagate_labels


@dataclass(frozen=True)
class Supervision:
    """What a network learns from."""

    targets: Tensor  # for the scene's pixels, flattened: classes (-1 for none), or probabilities (pixels, classes)
    centers: Tensor  # (n, 2), of the patches
    patches: int  # per epoch


def fit(
    scene: LabelledScene,
    split: Split,
    config: ModelConfig,
    recipe: Recipe,
    seed: int,
    options: FitOptions | None = None,
) -> Fitted:
    """Train a network on the training pixels; the validation pixels only calibrate its temperature."""
    options = options or FitOptions()
    keep_freed_memory()
    device = options.compute.device
    torch.manual_seed(seed)
    network = Transformer(config)
    if network.spectral_path is not None:
        fit_spectral_path(network, scene, split.train, is_frozen=not recipe.pseudo_labels)
    network.to(device)
    trainable = [weight for weight in network.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(trainable, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True)
    checkpoint, done = None, 0
    if options.checkpoint is not None:
        made_with = fingerprint(scene, split, config, recipe, seed, options.compute)
        checkpoint = TrainingCheckpoint(options.checkpoint, made_with)
        done = checkpoint.load(network, optimiser) if options.resume else 0
    pseudo_labels = None
    if recipe.pseudo_labels:
        with options.clock.stage(PROPAGATION):
            pseudo_labels = _propagate(scene, split, seed, options)
        _adapt_dropout(network, recipe, pseudo_labels, options)
    with options.clock.stage(NETWORK):
        source = PatchSource(scene, config.patch_px, device)
        supervision = _supervision(scene, split, recipe, pseudo_labels, source)
        epochs = range(done, recipe.epochs)
        options.say(f"training the network: {len(epochs)} epochs of {supervision.patches} patches")
        with gradient_pool(network, device) as gradients:
            trainer = Trainer(network, optimiser, gradients, source, supervision, recipe)
            for epoch in epochs:
                began = time.perf_counter()
                loss = trainer.run_epoch(epoch, seed, options.compute)
                validation_oa = None
                if options.validates and len(split.validation) and _is_due(epoch, recipe.epochs):
                    validation_oa = overall_accuracy(network, source, scene, split.validation)
                if checkpoint is not None:
                    checkpoint.save(network, optimiser, epoch + 1)
                options.report(EpochReport(epoch + 1, recipe.epochs, loss, validation_oa, time.perf_counter() - began))
        temperature = _temperature(network, source, scene, split, pseudo_labels, seed)
    return Fitted(network.cpu().eval(), temperature, pseudo_labels)


def _temperature(
    network: Transformer,
    source: PatchSource,
    scene: LabelledScene,
    split: Split,
    pseudo_labels: PseudoLabels | None,
    seed: int,
) -> float:
    """The temperature from the validation pixels, or without test pixels from the pseudo-labels."""
    if pseudo_labels is not None and not len(split.test):
        return _calibrate(network, source, scene, pseudo_labels, seed)
    truth = scene.labels[tuple(split.validation.T)].astype(np.int64) - 1
    return fit_temperature(centre_logits(network, source, split.validation), truth)


def _calibrate(
    network: Transformer, source: PatchSource, scene: LabelledScene, pseudo_labels: PseudoLabels, seed: int
) -> float:
    """The temperature that makes the network as confident as pseudo-labels calibrated by cross-validation are."""
    unlabelled = np.argwhere(scene.patch_centers(source.patch_px) & (scene.labels == 0))
    if not len(unlabelled):
        return 1.0
    sample = draw_some(unlabelled, CALIBRATION_PIXELS, seed)
    indices = np.ravel_multi_index((sample[:, 0], sample[:, 1]), scene.valid.shape)
    # Pseudo-labels were sharpened with a temperature below 1, and left as they are with one above it.
    targets = sharpen(pseudo_labels.probabilities[indices], max(1.0, pseudo_labels.settings.temperature))
    return fit_temperature_to(centre_logits(network, source, sample), targets)


def _propagate(scene: LabelledScene, split: Split, seed: int, options: FitOptions) -> PseudoLabels:
    options.say(f"propagating {len(split.train)} labels over the scene")
    found = options.propagate_labels(scene, split, seed)
    options.say(str(found.settings))
    return found


def _adapt_dropout(network: Transformer, recipe: Recipe, pseudo_labels: PseudoLabels, options: FitOptions) -> None:
    if pseudo_labels.settings.is_spectra_only:
        network.set_dropout(recipe.spectra_only_dropout)
        options.say(
            f"using a dropout of {recipe.spectra_only_dropout:g} against overfitting to the scattered errors of "
            "pseudo-labels from spectra only"
        )


def _supervision(
    scene: LabelledScene, split: Split, recipe: Recipe, pseudo_labels: PseudoLabels | None, source: PatchSource
) -> Supervision:
    """Pseudo-labels at random patches of the whole scene, or labels at patches round the training pixels."""
    device, patch_px = source.pixels.device, source.patch_px
    if pseudo_labels is None:
        return Supervision(
            training_targets(scene, split).to(device), torch.from_numpy(split.train).to(device), len(split.train)
        )
    everywhere = torch.from_numpy(np.argwhere(scene.patch_centers(patch_px))).to(device)
    targets = torch.from_numpy(pseudo_labels.probabilities).to(device)
    return Supervision(targets, everywhere, patches_in_epoch(recipe, everywhere))


def training_targets(scene: LabelledScene, split: Split) -> Tensor:
    """Classes 0..K-1 of the training pixels on the scene's grid, flattened; -1 elsewhere."""
    targets = np.full(scene.labels.shape, -1, np.int64)
    rows, cols = split.train.T
    targets[rows, cols] = scene.labels[rows, cols].astype(np.int64) - 1
    return torch.from_numpy(targets).flatten()


@dataclass(frozen=True)
class Trainer:
    """The training loop of one network."""

    network: Transformer
    optimiser: torch.optim.Optimizer
    gradients: GradientPool
    source: PatchSource
    supervision: Supervision
    recipe: Recipe

    def run_epoch(self, epoch: int, seed: int, compute: Compute) -> float:
        """Gives the mean loss of its steps."""
        self.network.train()
        # All random numbers of an epoch follow from the seed and its number, so a resumed run gives the same weights.
        torch.manual_seed(seed * 1_000_003 + epoch)
        recipe, supervision = self.recipe, self.supervision
        steps_per_epoch = -(-supervision.patches // recipe.batch)
        batches = draw_batches(self.source, supervision.centers, self.network.config, recipe, supervision.patches)
        losses = []
        for number, batch in enumerate(batches):
            step = epoch * steps_per_epoch + number
            losses.append(self._step(batch, learning_rate(recipe, step, recipe.epochs * steps_per_epoch), compute))
        return float(np.mean(losses))

    def _step(self, batch: Batch, rate: float, compute: Compute) -> float:
        """One optimiser step; gradients are accumulated over micro-batches and equal that of the whole batch."""
        config, recipe = self.network.config, self.recipe
        generator = torch.Generator(compute.device).manual_seed(batch.seed)
        indices, kept = sample_tokens(batch, config, recipe, generator)
        targets = self.supervision.targets[
            predicting_tokens(indices, config, kept)
        ]  # (n, ...), or (n, tokens, ...) by token
        supervised = targets.shape[:-1].numel() if recipe.pseudo_labels else int((targets >= 0).sum())

        def part(start: int) -> Part:
            def loss() -> Tensor:
                spectra = self.source.pixels[indices[start : start + size]]
                with compute.autocast():
                    logits = self.network.logits(spectra, kept).float().flatten(0, -2)
                return self._loss(logits, targets[start : start + size]) / supervised

            return Part(loss, batch.seed + start)

        size = micro_batch_size(indices)
        total = self.gradients.backward([part(start) for start in range(0, len(indices), size)])
        torch.nn.utils.clip_grad_norm_(self.gradients.weights, recipe.clip_norm)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        return total

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy, summed over the tokens that have a target."""
        if self.recipe.pseudo_labels:
            return F.cross_entropy(logits, targets.flatten(0, -2), reduction="sum")
        smoothing = self.recipe.label_smoothing
        return F.cross_entropy(logits, targets.flatten(), label_smoothing=smoothing, ignore_index=-1, reduction="sum")


def predict(network: Transformer, source: PatchSource, centers: Pixels) -> NDArray[np.int64]:
    """Classes 1..K of the centre pixels."""
    return centre_logits(network, source, centers).argmax(axis=1) + 1


def centre_logits(network: Transformer, source: PatchSource, centers: Pixels) -> NDArray[np.float32]:
    """Logits (n, classes) of the centre pixels."""
    half = network.config.patch_px // 2
    found = [np.empty((0, network.config.classes), np.float32)]
    for patches in gather_patches(network, source, centers):
        logits = network(patches)
        found.append((logits[:, half, half] if logits.ndim == 4 else logits).float().cpu().numpy())
    return np.concatenate(found)


def overall_accuracy(network: Transformer, source: PatchSource, scene: LabelledScene, centers: Pixels) -> float:
    """Share of the centres that are classified correctly."""
    truth = scene.labels[centers[:, 0], centers[:, 1]]
    return float((predict(network, source, centers) == truth).mean())


def fit_spectral_path(network: Transformer, scene: LabelledScene, train: Pixels, is_frozen: bool = True) -> None:
    """Fit the spectral path to the spectra of the training pixels, and set the classifier's weights to zero."""
    index = tuple(train.T)
    with threadpool_limits(1):  # the matrices are so small that threads wait for each other
        weights, offsets = logistic_regression(scene.standardised(index), scene.labels[index], inverse_penalty=1.0)
    path = network.spectral_path
    assert path is not None
    with torch.no_grad():
        path.weight.copy_(torch.from_numpy(weights.T))
        path.bias.copy_(torch.from_numpy(offsets))
        network.classifier.weight.zero_()
        network.classifier.bias.zero_()
    path.requires_grad_(not is_frozen)


def _is_due(epoch: int, epochs: int) -> bool:
    every = max(1, epochs // VALIDATIONS)
    return (epoch + 1) % every == 0 or epoch + 1 == epochs

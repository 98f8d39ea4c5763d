"""Fitting a network: what it learns from, the training loop, and checkpoints to go on from."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Beta
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from model.architecture import ModelConfig, Transformer, answering
from service.errors import OptionsUnusable, OutputUnwritable
from training.calibration import fit_temperature
from training.datasets import LabelledScene
from training.memory import keep_freed_memory
from training.patches import (
    Batch,
    PatchSource,
    draw_batches,
    gather_patches,
    is_fast_in_bfloat16,
    looked_at,
    micro_batch,
    patches_in_epoch,
)
from training.pretraining import pretrain
from training.recipes import Recipe, learning_rate
from training.splits import Pixels, Split
from training.teacher import Choice, Lesson, Teach, teach

VALIDATIONS = 20  # times over a run that the validation pixels are looked at


@dataclass(frozen=True)
class Fitted:
    """A network, the temperature that its logits are to be divided by, and what it was taught, if by a teacher."""

    network: Transformer
    temperature: float = 1.0
    lesson: Lesson | None = None

    @property
    def choice(self) -> Choice | None:
        """What the recipe chose by itself."""
        return None if self.lesson is None else self.lesson.choice


@dataclass(frozen=True)
class EpochReport:
    """What a progress bar shows after an epoch."""

    epoch: int
    epochs: int
    loss: float
    validation_oa: float | None
    seconds: float


def fit(
    scene: LabelledScene,
    split: Split,
    config: ModelConfig,
    recipe: Recipe,
    seed: int,
    device: str = "auto",
    checkpoint: Path | None = None,
    resume: bool = False,
    report: Callable[[EpochReport], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    is_watched: bool = True,
    teach: Teach = teach,
) -> Fitted:
    """Train a network; with `checkpoint`, every epoch ends with a file that `resume` goes on from.

    Where it is watched, reports say how the validation pixels do by the weights of the moment; nothing is decided by
    that.
    """
    keep_freed_memory()
    where = choose_device(device)
    torch.manual_seed(seed)
    network = Transformer(config)
    if network.spectral_path is not None:
        fit_spectral_path(network, scene, split.train, is_frozen=not recipe.taught)
    network.to(where)
    trainable = [weight for weight in network.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(trainable, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    fingerprint = _fingerprint(scene, split, config, recipe, seed)
    restored: dict[str, Any] = {}
    if resume and checkpoint is not None:
        restored = _load(checkpoint, network, optimiser, fingerprint)
    done: int = restored.get("epochs_done", 0)
    everywhere = torch.from_numpy(np.argwhere(scene.valid)).to(where)
    lesson = None
    if recipe.taught:
        say(f"making a teacher for the whole scene from {len(split.train)} labels")
        lesson = teach(scene, split, seed)
        say(str(lesson.choice))
        if lesson.choice.is_spectra_alone:
            network.drop(recipe.dropout_by_spectra)
            say(f"a dropout of {recipe.dropout_by_spectra:g}, so that its single mistakes are not learnt by heart")
        targets, centers = torch.from_numpy(lesson.probabilities).to(where), everywhere
        patches = patches_in_epoch(recipe, centers)
    else:
        targets, centers = training_targets(scene, split).to(where), torch.from_numpy(split.train).to(where)
        patches = len(centers)
    source = PatchSource(scene, config.patch_px, where)
    if recipe.pretraining_epochs and not done:
        off = pretrain(network, source, everywhere, replace(recipe, epochs=recipe.pretraining_epochs), seed)
        say(f"guessed hidden spectra; {100 * off:.0f} % of their variance is left unexplained")
    average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(recipe.averaging)) if recipe.averaging else None
    if average is not None and "average" in restored:
        average.load_state_dict(restored["average"])
    batches_per_epoch = -(-patches // recipe.batch)
    for epoch in range(done, recipe.epochs):
        began = time.perf_counter()
        network.train()
        # Every draw of an epoch follows from the seed and the epoch, so a resumed run repeats the run it goes on with.
        torch.manual_seed(seed * 1_000_003 + epoch)
        losses = []
        for number, batch in enumerate(draw_batches(source, centers, config, recipe, where, patches)):
            step = epoch * batches_per_epoch + number
            rate = learning_rate(recipe, step, recipe.epochs * batches_per_epoch)
            losses.append(_update(network, optimiser, source, targets, batch, recipe, rate))
            if average is not None:
                average.update_parameters(network)
        validation_oa = None
        if is_watched and len(split.validation) and _is_due(epoch, recipe.epochs):
            validation_oa = overall_accuracy(network, source, scene, split.validation)
        if checkpoint is not None:
            _save(checkpoint, network, optimiser, average, fingerprint, epoch + 1)
        report(
            EpochReport(epoch + 1, recipe.epochs, float(np.mean(losses)), validation_oa, time.perf_counter() - began)
        )
    if average is not None:
        network.load_state_dict(average.module.state_dict())
    known = scene.labels[tuple(split.validation.T)].astype(np.int64) - 1
    temperature = fit_temperature(centre_logits(network, source, split.validation), known)
    return Fitted(network.cpu().eval(), temperature, lesson)


def choose_device(device: str) -> torch.device:
    """The torch device of an option: `auto` takes CUDA where there is one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise OptionsUnusable("--device cuda was asked for, but torch finds no CUDA device here: use --device cpu")
    return torch.device(device)


def training_targets(scene: LabelledScene, split: Split) -> Tensor:
    """Classes 0..K-1 of the training pixels on the scene's grid, flattened; -1 elsewhere."""
    targets = np.full(scene.labels.shape, -1, np.int64)
    rows, cols = split.train.T
    targets[rows, cols] = scene.labels[rows, cols].astype(np.int64) - 1
    return torch.from_numpy(targets).flatten()


def _update(
    network: Transformer,
    optimiser: torch.optim.Optimizer,
    source: PatchSource,
    targets: Tensor,
    batch: Batch,
    recipe: Recipe,
    rate: float,
) -> float:
    """One optimiser step; the gradient is gathered over micro-batches and equals that of the whole batch.

    Only mixing knows of micro-batches: patches are mixed inside of them. `targets` are classes of the scene's pixels,
    -1 where nothing is known, or probabilities of them.
    """
    config, device = network.config, batch.places.device
    generator = torch.Generator(device).manual_seed(batch.seed)
    places, kept = looked_at(batch, config, recipe, generator)
    asked = answering(places, config, kept)  # (n,), or (n, tokens) for the head `token`
    micro = micro_batch(places)
    supervised = asked.numel() if recipe.taught else int((targets[asked] >= 0).sum())
    optimiser.zero_grad()
    total = 0.0
    for start in range(0, len(places), micro):
        spectra, answering_for = source.pixels[places[start : start + micro]], asked[start : start + micro]
        shares = [(1.0, answering_for)]
        if recipe.mixing:
            share, order = float(Beta(recipe.mixing, recipe.mixing).sample()), torch.randperm(len(spectra))
            spectra = share * spectra + (1 - share) * spectra[order]
            shares = [(share, answering_for), (1 - share, answering_for[order])]
        with torch.autocast(device.type, torch.bfloat16, enabled=is_fast_in_bfloat16(device)):
            logits = network.answer(spectra, kept).float().flatten(0, -2)
        smoothing = 0.0 if recipe.taught else recipe.label_smoothing
        surprises = [share * _surprise(logits, targets[asked_for.flatten()], smoothing) for share, asked_for in shares]
        loss = torch.stack(surprises).sum() / supervised
        loss.backward()
        total += float(loss.detach())
    torch.nn.utils.clip_grad_norm_(network.parameters(), recipe.clip_norm)
    for group in optimiser.param_groups:
        group["lr"] = rate
    optimiser.step()
    return total


def _surprise(logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    """Cross-entropy, summed over those of which something is known."""
    return F.cross_entropy(logits, targets, label_smoothing=label_smoothing, ignore_index=-1, reduction="sum")


def predict(network: Transformer, source: PatchSource, centers: Pixels) -> NDArray[np.int64]:
    """Classes 1..K of the centre pixels."""
    return centre_logits(network, source, centers).argmax(axis=1) + 1


def centre_logits(network: Transformer, source: PatchSource, centers: Pixels) -> NDArray[np.float32]:
    """Logits (n, classes) of the centre pixels."""
    half = network.config.patch_px // 2
    answers = [np.empty((0, network.config.classes), np.float32)]
    for patches in gather_patches(network, source, centers):
        logits = network(patches)
        answers.append((logits[:, half, half] if logits.ndim == 4 else logits).float().cpu().numpy())
    return np.concatenate(answers)


def overall_accuracy(network: Transformer, source: PatchSource, scene: LabelledScene, centers: Pixels) -> float:
    """Share of the centres whose class is right."""
    truth = scene.labels[centers[:, 0], centers[:, 1]]
    return float((predict(network, source, centers) == truth).mean())


def fit_spectral_path(network: Transformer, scene: LabelledScene, train: Pixels, is_frozen: bool = True) -> None:
    """Fit the spectral path to the training pixels' own spectra, and start the rest from nothing."""
    from sklearn.linear_model import LogisticRegression

    spectra, classes = scene.standardised(tuple(train.T)), scene.labels[tuple(train.T)]
    regression = LogisticRegression(max_iter=2000).fit(spectra, classes)
    weight, bias = regression.coef_, regression.intercept_
    if len(regression.classes_) == 2:  # scikit-learn keeps one row for two classes
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    path = network.spectral_path
    assert path is not None
    with torch.no_grad():
        path.weight.copy_(torch.from_numpy(weight))
        path.bias.copy_(torch.from_numpy(bias))
        network.classifier.weight.zero_()
        network.classifier.bias.zero_()
    path.requires_grad_(not is_frozen)


def _is_due(epoch: int, epochs: int) -> bool:
    every = max(1, epochs // VALIDATIONS)
    return (epoch + 1) % every == 0 or epoch + 1 == epochs


def _fingerprint(scene: LabelledScene, split: Split, config: ModelConfig, recipe: Recipe, seed: int) -> dict[str, Any]:
    """All that a run's result follows from, by the names of the options behind it."""
    pixels = hashlib.sha256(b"".join(part.tobytes() for part in (split.train, split.validation, split.test)))
    options = {**asdict(recipe), **asdict(config)}  # the head and the path are those asked for, not the recipe's
    options |= {"patch": options.pop("patch_px"), "recipe": options.pop("name")}
    return {"scene or labels": scene.digest, **options, "seed": seed, "split": pixels.hexdigest()}


def _save(
    path: Path,
    network: Transformer,
    optimiser: torch.optim.Optimizer,
    average: AveragedModel | None,
    fingerprint: dict[str, Any],
    epochs_done: int,
) -> None:
    state = {
        "fingerprint": fingerprint,
        "epochs_done": epochs_done,
        "network": network.state_dict(),
        "optimiser": optimiser.state_dict(),
        **({} if average is None else {"average": average.state_dict()}),
    }
    unfinished = path.with_name(path.name + ".part")
    try:
        torch.save(state, unfinished)
        unfinished.replace(path)
    except (OSError, RuntimeError) as error:  # torch raises the latter when the disk is full
        raise OutputUnwritable(
            f"the checkpoint {path} cannot be written: free some disk, or choose another -o"
        ) from error
    finally:
        with suppress(OSError):
            unfinished.unlink()


def _load(
    path: Path, network: Transformer, optimiser: torch.optim.Optimizer, fingerprint: dict[str, Any]
) -> dict[str, Any]:
    """What a checkpoint holds, its network and optimiser put in place."""
    require_checkpoint(path)
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        made_with, _ = state["fingerprint"], int(state["epochs_done"])
    except Exception as error:  # torch's reader raises whatever its bytes lead it into
        raise OptionsUnusable(f"the checkpoint {path} is damaged: delete it and start without --resume") from error
    other = [part for part, value in fingerprint.items() if made_with.get(part) != value]
    if other:
        raise OptionsUnusable(
            f"the checkpoint {path} was made with another {', '.join(other)}: repeat its options, or start without "
            "--resume"
        )
    network.load_state_dict(state["network"])
    optimiser.load_state_dict(state["optimiser"])
    return state


def require_checkpoint(path: Path) -> None:
    """Refuse to go on from nothing."""
    if not path.exists():
        raise OptionsUnusable(f"--resume found no checkpoint at {path}: start without --resume")

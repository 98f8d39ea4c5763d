"""Fitting a network: recipes, augmentation, the training loop, and checkpoints to go on from."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from model.architecture import Head, ModelConfig, Transformer, answering, centre_token, patch_indices
from service.errors import OptionsUnusable, OutputUnwritable
from training.calibration import fit_temperature
from training.datasets import LabelledScene
from training.splits import Pixels, Split
from training.teacher import Choice, Lesson, teach

# Attention matrices of 8 whole patches (8 x 4 heads x 256 x 256 floats) stay in a 32 MB L3 cache; those of 64 do not.
# AMD EPYC, 2 cores, forward and backward: about 40 patches/s at 64, 108 at 16, 91 to 113 at 8, 80 at 2.
CPU_TOKENS_AT_ONCE = 8 * 256
CUDA_PREDICT_BATCH = 256
VALIDATIONS = 20  # times over a run that the validation pixels are looked at


@dataclass(frozen=True)
class Recipe:
    """How the network is trained."""

    name: str
    epochs: int
    batch: int
    learning_rate: float
    weight_decay: float
    one_cycle: bool
    symmetries: bool  # rotations and flips about the centre pixel
    token_share: float  # share of a patch's tokens that a step looks at, drawn anew; mapping looks at all
    clip_norm: float = 1.0
    label_smoothing: float = 0.05
    taught: bool = False  # learns a teacher's answers for the whole scene, not the labels alone
    head: Head = "pooled"  # unless another is asked for
    spectral_path: bool = False


RECIPES = {
    "paper": Recipe("paper", 50, 128, 3e-4, 2e-4, one_cycle=False, symmetries=False, token_share=1.0),
    # Every token of a patch has an answer to learn, so a step teaches 64 times as much as one that asks for the centre.
    "strong": Recipe(
        "strong",
        40,
        32,
        2e-3,
        0.02,
        one_cycle=True,
        symmetries=True,
        token_share=0.25,
        taught=True,
        head="token",
        spectral_path=True,
    ),
}
# An epoch of a taught recipe: patches laid at random over the scene, one for so many of its pixels.
PIXELS_PER_PATCH = 16
MOST_PATCHES = 1024


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


class PatchSource:
    """The standardised scene on the training device, from which patches are gathered."""

    def __init__(self, scene: LabelledScene, patch_px: int, device: torch.device) -> None:
        self.rows, self.cols, _ = scene.cube.shape
        self.patch_px = patch_px
        self.pixels = torch.from_numpy(scene.standardised()).flatten(0, 1).to(device)  # (rows * cols, bands)

    def places(self, centers: Tensor, symmetry: Tensor | None = None) -> Tensor:
        """Places (n, patch, patch) of the patches' pixels; `symmetry` picks one of the eight for each patch."""
        if symmetry is None:
            return patch_indices(centers, self.patch_px, self.rows, self.cols)
        signs = torch.stack([1 - 2 * (symmetry & 1), 1 - (symmetry & 2)], dim=1)
        places = patch_indices(centers, self.patch_px, self.rows, self.cols, signs)
        return torch.where((symmetry & 4).bool()[:, None, None], places.transpose(1, 2), places)


@dataclass(frozen=True)
class Batch:
    """Patches of one optimiser step, before their pixels are gathered."""

    places: Tensor  # (n, patch, patch)
    seed: int  # of the parts of the patches that are looked at


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
) -> Fitted:
    """Train a network; with `checkpoint`, every epoch ends with a file that `resume` goes on from.

    Where it is watched, reports say how the validation pixels do; nothing is decided by that.
    """
    where = choose_device(device)
    torch.manual_seed(seed)
    network = Transformer(config)
    if network.spectral_path is not None:
        fit_spectral_path(network, scene, split.train, is_frozen=not recipe.taught)
    network.to(where)
    trainable = [weight for weight in network.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(trainable, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    fingerprint = _fingerprint(scene, split, config, recipe, seed)
    done = 0
    if resume and checkpoint is not None:
        done = _load(checkpoint, network, optimiser, fingerprint)
    lesson = None
    if recipe.taught:
        say(f"making a teacher for the whole scene from {len(split.train)} labels")
        lesson = teach(scene, split, seed)
        say(str(lesson.choice))
        targets = torch.from_numpy(lesson.probabilities).to(where)
        centers = torch.from_numpy(np.argwhere(scene.valid)).to(where)
        patches = max(recipe.batch, min(MOST_PATCHES, len(centers) // PIXELS_PER_PATCH))
    else:
        targets = training_targets(scene, split).to(where)
        centers = torch.from_numpy(split.train).to(where)
        patches = len(centers)
    source = PatchSource(scene, config.patch_px, where)
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
        validation_oa = None
        if is_watched and len(split.validation) and _is_due(epoch, recipe.epochs):
            validation_oa = overall_accuracy(network, source, scene, split.validation)
        if checkpoint is not None:
            _save(checkpoint, network, optimiser, fingerprint, epoch + 1)
        report(
            EpochReport(epoch + 1, recipe.epochs, float(np.mean(losses)), validation_oa, time.perf_counter() - began)
        )
    known = scene.labels[tuple(split.validation.T)].astype(np.int64) - 1
    temperature = fit_temperature(centre_logits(network, source, split.validation), known)
    return Fitted(network.cpu().eval(), temperature, lesson)


def separation_px(config: ModelConfig, recipe: Recipe) -> int:
    """How far from a training pixel another must lie, in row or in column, for their patches to share nothing.

    A mirrored patch reaches one pixel further than a plain one. Where the head `token` learns from single labels, a
    patch lies anywhere round its pixel. A taught network sees the whole scene: there it is the labels that lie apart.
    """
    reaches_further = config.head == "token" and not recipe.taught
    return config.patch_px + (config.patch_px // 2 if reaches_further else 1)


def choose_device(device: str) -> torch.device:
    """The torch device of an option: `auto` takes CUDA where there is one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise OptionsUnusable("--device cuda was asked for, but torch finds no CUDA device here: use --device cpu")
    return torch.device(device)


@cache
def is_fast_in_bfloat16(device: torch.device) -> bool:
    """Whether products of a training step are taken in half the bits; sums, softmax and weights keep all of theirs."""
    capabilities = torch.cpu.get_capabilities()
    return device.type == "cuda" or bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """Constant, or one cycle: up over the first 30 % of the steps, down to almost nothing over the rest."""
    if not recipe.one_cycle:
        return recipe.learning_rate
    rise = 0.3 * steps
    if step < rise:
        low, high, progress = recipe.learning_rate / 25, recipe.learning_rate, step / rise
    else:
        low, high, progress = recipe.learning_rate, recipe.learning_rate / 1e4, (step - rise) / (steps - rise)
    return high + (low - high) * (1 + math.cos(math.pi * progress)) / 2


def training_targets(scene: LabelledScene, split: Split) -> Tensor:
    """Classes 0..K-1 of the training pixels on the scene's grid, flattened; -1 elsewhere."""
    targets = np.full(scene.labels.shape, -1, np.int64)
    rows, cols = split.train.T
    targets[rows, cols] = scene.labels[rows, cols].astype(np.int64) - 1
    return torch.from_numpy(targets).flatten()


def draw_batches(
    source: PatchSource,
    centers: Tensor,
    config: ModelConfig,
    recipe: Recipe,
    device: torch.device,
    patches: int | None = None,
) -> Iterator[Batch]:
    """One epoch: every centre once, or so many of them, in random order, each in a patch of its own."""
    order = torch.randperm(len(centers))[:patches]
    half = config.patch_px // 2
    for chosen in order.split(recipe.batch):
        count = len(chosen)
        patch_centers = centers[chosen.to(device)]
        if config.head == "token" and not recipe.taught:
            # The patch lies anywhere round the pixel, its mirror images included, with a centre on the scene.
            shift = torch.randint(-half + 1, half, (count, 2)).to(device)
            limit = torch.tensor([source.rows - 1, source.cols - 1], device=device)
            patch_centers = (patch_centers + shift).clamp_min(0).minimum(limit)
        symmetry = torch.randint(0, 8, (count,)).to(device) if recipe.symmetries else None
        yield Batch(source.places(patch_centers, symmetry), int(torch.randint(0, 2**31, (1,))))


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

    `targets` are classes of the scene's pixels, -1 where nothing is known, or probabilities of them.
    """
    config, device = network.config, batch.places.device
    generator = torch.Generator(device).manual_seed(batch.seed)
    kept = draw_kept(config, recipe, generator)
    places = batch.places.flatten(1)  # (n, tokens)
    if kept is not None:
        places = places[:, kept]
    asked = answering(places, config, kept)  # (n,), or (n, tokens) for the head `token`
    micro = micro_batch(places.shape[1]) if device.type == "cpu" else len(places)
    supervised = asked.numel() if recipe.taught else int((targets[asked] >= 0).sum())
    optimiser.zero_grad()
    total = 0.0
    for start in range(0, len(places), micro):
        part = slice(start, start + micro)
        with torch.autocast(device.type, torch.bfloat16, enabled=is_fast_in_bfloat16(device)):
            logits = network.answer(source.pixels[places[part]], kept)
        loss = F.cross_entropy(
            logits.float().flatten(0, -2),
            targets[asked[part].flatten()],
            label_smoothing=0.0 if recipe.taught else recipe.label_smoothing,
            ignore_index=-1,
            reduction="sum",
        )
        loss = loss / supervised
        loss.backward()
        total += float(loss.detach())
    torch.nn.utils.clip_grad_norm_(network.parameters(), recipe.clip_norm)
    for group in optimiser.param_groups:
        group["lr"] = rate
    optimiser.step()
    return total


def micro_batch(tokens: float) -> int:
    """How many patches of so many tokens go through the network at once on a CPU."""
    return max(1, int(CPU_TOKENS_AT_ONCE // tokens))


def draw_kept(config: ModelConfig, recipe: Recipe, generator: torch.Generator) -> Tensor | None:
    """Tokens to look at, the centre's first and the rest at random; None for all.

    Where single labels are learnt from and each token answers for itself, a label's own token must not be left out.
    """
    if recipe.token_share >= 1 or (config.head == "token" and not recipe.taught):
        return None
    tokens, centre = config.patch_px**2, centre_token(config.patch_px)
    wanted = round(recipe.token_share * tokens) - 1
    others = torch.randperm(tokens - 1, generator=generator, device=generator.device)[:wanted]
    others = others + (others >= centre)
    return torch.cat([others.new_tensor([centre]), others])


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


def gather_patches(network: Transformer, source: PatchSource, centers: Pixels) -> Iterator[Tensor]:
    """Patches round the centres, as many at once as suits the device, for a network that only answers."""
    network.eval()
    device = source.pixels.device
    at_once = micro_batch(network.config.patch_px**2) if device.type == "cpu" else CUDA_PREDICT_BATCH
    with torch.inference_mode():
        for chunk in torch.from_numpy(centers).split(at_once):
            if len(chunk):
                yield source.pixels[source.places(chunk.to(device))]


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
    path: Path, network: Transformer, optimiser: torch.optim.Optimizer, fingerprint: dict[str, Any], epochs_done: int
) -> None:
    state = {
        "fingerprint": fingerprint,
        "epochs_done": epochs_done,
        "network": network.state_dict(),
        "optimiser": optimiser.state_dict(),
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


def _load(path: Path, network: Transformer, optimiser: torch.optim.Optimizer, fingerprint: dict[str, Any]) -> int:
    require_checkpoint(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        made_with, epochs_done = state["fingerprint"], int(state["epochs_done"])
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
    return epochs_done


def require_checkpoint(path: Path) -> None:
    """Refuse to go on from nothing."""
    if not path.exists():
        raise OptionsUnusable(f"--resume found no checkpoint at {path}: start without --resume")

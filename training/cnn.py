"""A small 3-D convolutional network, the kind that patch classifiers are compared with.

Three convolutions over bands, rows and columns at once, in the manner of Li et al. (2017, doi:10.3390/rs9010067) and
Hamida et al. (2018, doi:10.1109/TGRS.2018.2818945): strides instead of pooling shorten the spectrum, unpadded kernels
of 3 x 3 shrink a patch of 7 x 7 pixels to one, and a linear layer reads the classes from what is left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from model.architecture import patch_indices
from training.datasets import LabelledScene
from training.fit import choose_device
from training.memory import keep_freed_memory
from training.splits import Pixels

PATCH_PX = 7
WIDTHS = (16, 32, 64)
KERNELS = (7, 5, 3)  # along the spectrum
STRIDES = (4, 3, 2)
DROPOUT = 0.5

# A fit takes as long for 100 pixels as for 1,900: 45 s with 200 bands on one core of an AMD EPYC. Indian Pines, 5 %,
# random split: OA 91.6 over three seeds; 800 steps gave seed 0 91.1 instead of 92.2.
STEPS = 1200
EPOCHS = 30  # at least, however many pixels there are
BATCH = 48
LEARNING_RATE = 2e-3
WEIGHT_DECAY = 1e-3
PREDICT_BATCH = 256


class ConvNet(nn.Module):
    """Patches (n, 7, 7, bands) in, logits (n, classes) out."""

    def __init__(self, bands: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 1
        for width, kernel, stride in zip(WIDTHS, KERNELS, STRIDES, strict=True):
            layers += [
                nn.Conv3d(before, width, (kernel, 3, 3), (stride, 1, 1), (kernel // 2, 0, 0), bias=False),
                nn.BatchNorm3d(width),
                nn.ReLU(),
            ]
            before, bands = width, -(-bands // stride)
        self.features = nn.Sequential(*layers)
        self.dropout = nn.Dropout(DROPOUT)
        self.classifier = nn.Linear(before * bands, classes)

    def forward(self, patches: Tensor) -> Tensor:
        features = self.features(patches.movedim(-1, 1).unsqueeze(1))  # (n, width, bands left, 1, 1)
        logits: Tensor = self.classifier(self.dropout(features.flatten(1)))
        return logits


@dataclass(frozen=True)
class FittedCnn:
    """A fitted network and the device it lives on."""

    network: ConvNet
    device: torch.device

    @property
    def weights(self) -> int:
        """How many numbers were learnt."""
        return sum(weight.numel() for weight in self.network.parameters())


def fit_cnn(scene: LabelledScene, train: Pixels, seed: int, device: str = "auto") -> FittedCnn:
    """Fit the network to the training pixels, each in the patch round it; the same seed gives the same weights."""
    keep_freed_memory()
    where = choose_device(device)
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    network = ConvNet(scene.cube.shape[-1], len(scene.legend)).to(where).train()
    optimiser = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    pixels, centers = _pixels(scene, where), torch.from_numpy(train)
    targets = torch.from_numpy(scene.labels[tuple(train.T)].astype(np.int64) - 1)
    steps = max(STEPS, EPOCHS * math.ceil(len(train) / BATCH))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, LEARNING_RATE, total_steps=steps)
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        while len(order) < BATCH:
            order = torch.cat([order, torch.randperm(len(train), generator=generator)])
        chosen, order = order[:BATCH], order[BATCH:]
        symmetry = torch.randint(0, 8, (BATCH,), generator=generator)
        logits = network(_patches(pixels, scene, centers[chosen], symmetry))
        loss = F.cross_entropy(logits, targets[chosen].to(where))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return FittedCnn(network.eval(), where)


def predict_cnn(fitted: FittedCnn, scene: LabelledScene, pixels: Pixels) -> NDArray[np.int64]:
    """Classes 1..K of pixels (n, 2)."""
    values = _pixels(scene, fitted.device)
    with torch.inference_mode():
        classes = [
            fitted.network(_patches(values, scene, part)).argmax(dim=-1).cpu() + 1
            for part in torch.from_numpy(pixels).split(PREDICT_BATCH)
        ]
    return torch.cat(classes).numpy() if len(pixels) else np.empty(0, np.int64)


def _pixels(scene: LabelledScene, device: torch.device) -> Tensor:
    return torch.from_numpy(scene.standardised()).flatten(0, 1).to(device)  # (rows * cols, bands)


def _patches(pixels: Tensor, scene: LabelledScene, centers: Tensor, symmetry: Tensor | None = None) -> Tensor:
    """Patches (n, 7, 7, bands), reflected at the scene's edge; `symmetry` turns and mirrors each in one of 8 ways."""
    rows, cols = scene.labels.shape
    signs = None if symmetry is None else torch.stack([1 - 2 * (symmetry & 1), 1 - (symmetry & 2)], dim=1)
    # Patches of the Transformer are even and reach one pixel further up and left: that row and column are left out.
    places = patch_indices(centers, PATCH_PX + 1, rows, cols, signs)[:, 1:, 1:]
    if symmetry is not None:
        places = torch.where((symmetry & 4).bool()[:, None, None], places.transpose(1, 2), places)
    return pixels[places.to(pixels.device)]

"""Baselines on the same pixels: classifiers of single spectra, and a small 3-D convolutional network (CNN).

The CNN has three convolutions over bands, rows and columns, like those of Li et al. (2017, doi:10.3390/rs9010067) and
Hamida et al. (2018, doi:10.1109/TGRS.2018.2818945): strides instead of pooling shorten the spectrum, unpadded kernels
of 3 x 3 reduce a patch of 7 x 7 pixels to one, and a linear layer predicts the class.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC
from torch import Tensor, nn
from torch.nn import functional as F

from hyperscene.model.architecture import patch_indices
from hyperscene.training.data.datasets import LabelledScene
from hyperscene.training.data.splits import Pixels
from hyperscene.training.evaluate import Scores, score
from hyperscene.training.fit.compute import CPU_DEVICE, keep_freed_memory

BASELINES = {
    "logistic_regression": "logistic regression",
    "tuned_regression": "logistic regression, tuned",
    "shrinkage_lda": "shrinkage LDA",
    "random_forest": "random forest",
    "svm": "SVM",
    "tuned_svm": "SVM, tuned",
    "cnn_3d": "3-D CNN",
}
CNN = "cnn_3d"
# Candidates for cross-validation on the training pixels.
TUNED_C = (0.1, 1.0, 10.0, 100.0)
SVM_CANDIDATES = [
    {"kernel": ["linear"], "C": [0.01, 0.1, 1.0, 10.0]},
    {"kernel": ["rbf"], "C": [1.0, 10.0, 100.0, 1000.0], "gamma": [1e-4, 1e-3, 1e-2, 1e-1]},
]
TUNING_FOLDS = 3


class ShrinkageLda:
    """Linear discriminant analysis with Ledoit-Wolf shrinkage; nearest neighbour with one pixel for each class."""

    def __init__(self) -> None:
        self._fitted: Any = None

    def fit(self, spectra: NDArray[np.float32], classes: NDArray[np.integer]) -> ShrinkageLda:
        has_spread = len(classes) > len(np.unique(classes))
        classifier = (
            LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto") if has_spread else KNeighborsClassifier(1)
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Only one sample available", UserWarning)  # a class of one pixel
            self._fitted = classifier.fit(spectra.astype(np.float64), classes)
        return self

    def predict(self, spectra: NDArray[np.float32]) -> NDArray[np.integer]:
        found: NDArray[np.integer] = self._fitted.predict(spectra.astype(np.float64))
        return found


SPECTRAL_CLASSIFIERS: dict[str, Callable[[int], Any]] = {
    "random_forest": lambda seed: RandomForestClassifier(500, random_state=seed),
    "svm": lambda _: SVC(C=100.0),
    "tuned_svm": lambda seed: _tuned(SVC(), SVM_CANDIDATES, seed),
    "shrinkage_lda": lambda _: ShrinkageLda(),
    "logistic_regression": lambda _: LogisticRegression(max_iter=5000),
    "tuned_regression": lambda seed: _tuned(LogisticRegression(max_iter=5000), {"C": TUNED_C}, seed),
}


def _tuned(classifier: Any, candidates: Any, seed: int) -> GridSearchCV:
    return GridSearchCV(classifier, candidates, cv=KFold(TUNING_FOLDS, shuffle=True, random_state=seed))


def score_baselines(scene: LabelledScene, train: Pixels, test: Pixels, seed: int) -> dict[str, Scores]:
    """Test scores by label, of classifiers fitted to the standardised spectra of the training pixels."""
    class_names = tuple(entry.name for entry in scene.legend)
    truth = scene.labels[tuple(test.T)]
    return {
        BASELINES[name]: score(truth, predict_baseline(name, scene, train, test, seed), class_names)
        for name in SPECTRAL_CLASSIFIERS
    }


def predict_baseline(
    name: str, scene: LabelledScene, train: Pixels, test: Pixels, seed: int, device: torch.device = CPU_DEVICE
) -> NDArray[np.integer]:
    """Classes 1..K of the test pixels, by one of SPECTRAL_CLASSIFIERS or the CNN."""
    if name == CNN:
        return predict_cnn(fit_cnn(scene, train, seed, device), scene, test)
    fitted, predicted = tuple(train.T), tuple(test.T)
    classifier = SPECTRAL_CLASSIFIERS[name](seed).fit(scene.standardised(fitted), scene.labels[fitted])
    found: NDArray[np.integer] = classifier.predict(scene.standardised(predicted))
    return found


# The 3-D CNN

PATCH_PX = 7
WIDTHS = (16, 32, 64)
KERNELS = (7, 5, 3)  # along the spectrum
STRIDES = (4, 3, 2)
DROPOUT = 0.5

# A fit takes as long for 100 pixels as for 1,900: 45 s with 200 bands on one core of an AMD EPYC. Indian Pines, 5 %,
# random split: OA 91.6 over three seeds; 800 steps gave seed 0 91.1 instead of 92.2.
STEPS = 1200
MIN_EPOCHS = 30
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
    """A fitted network and its device."""

    network: ConvNet
    device: torch.device

    @property
    def weights(self) -> int:
        """The number of parameters."""
        return sum(weight.numel() for weight in self.network.parameters())


def fit_cnn(scene: LabelledScene, train: Pixels, seed: int, device: torch.device) -> FittedCnn:
    """Fit the network to patches around the training pixels; the same seed gives the same weights."""
    keep_freed_memory()
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    network = ConvNet(scene.cube.shape[-1], len(scene.legend)).to(device).train()
    optimiser = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    pixels, centers = _pixels(scene, device), torch.from_numpy(train)
    targets = torch.from_numpy(scene.labels[tuple(train.T)].astype(np.int64) - 1)
    steps = max(STEPS, MIN_EPOCHS * math.ceil(len(train) / BATCH))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, LEARNING_RATE, total_steps=steps)
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        while len(order) < BATCH:
            order = torch.cat([order, torch.randperm(len(train), generator=generator)])
        chosen, order = order[:BATCH], order[BATCH:]
        symmetry = torch.randint(0, 8, (BATCH,), generator=generator)
        logits = network(_patches(pixels, scene, centers[chosen], symmetry))
        loss = F.cross_entropy(logits, targets[chosen].to(device))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return FittedCnn(network.eval(), device)


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
    """Patches (n, 7, 7, bands), reflected at the scene's edge; `symmetry` (0 to 7) rotates and mirrors each."""
    rows, cols = scene.labels.shape
    signs = None if symmetry is None else torch.stack([1 - 2 * (symmetry & 1), 1 - (symmetry & 2)], dim=1)
    # Patches of the Transformer have an even size and reach one pixel further up and left: drop that row and column.
    indices = patch_indices(centers, PATCH_PX + 1, rows, cols, signs)[:, 1:, 1:]
    if symmetry is not None:
        indices = torch.where((symmetry & 4).bool()[:, None, None], indices.transpose(1, 2), indices)
    return pixels[indices.to(pixels.device)]

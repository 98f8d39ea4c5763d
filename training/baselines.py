"""What people use today, on the same pixels: classifiers that look at one spectrum at a time, and a small 3-D CNN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.svm import SVC

from training.cnn import fit_cnn, predict_cnn
from training.datasets import LabelledScene
from training.evaluate import Scores, score
from training.plan import BASELINES
from training.splits import Pixels

CNN = "cnn_3d"
TUNED_C = (0.1, 1.0, 10.0, 100.0)  # among which a logistic regression chooses inside its training pixels
TUNING_FOLDS = 3
PER_PIXEL: dict[str, Callable[[int], Any]] = {
    "random_forest": lambda seed: RandomForestClassifier(500, random_state=seed),
    "svm": lambda _: SVC(C=100.0),
    "logistic_regression": lambda _: LogisticRegression(max_iter=5000),
    "tuned_regression": lambda seed: GridSearchCV(
        LogisticRegression(max_iter=5000), {"C": TUNED_C}, cv=KFold(TUNING_FOLDS, shuffle=True, random_state=seed)
    ),
}


def score_baselines(scene: LabelledScene, train: Pixels, test: Pixels, seed: int) -> dict[str, Scores]:
    """Scores by label on the test pixels, of classifiers fitted to the training pixels' standardised spectra."""
    class_names = tuple(entry.name for entry in scene.legend)
    truth = scene.labels[tuple(test.T)]
    return {
        BASELINES[name]: score(truth, classify_with_baseline(name, scene, train, test, seed), class_names)
        for name in PER_PIXEL
    }


def classify_with_baseline(
    name: str, scene: LabelledScene, train: Pixels, test: Pixels, seed: int, device: str = "auto"
) -> NDArray[np.integer]:
    """Classes 1..K of the test pixels by one of PER_PIXEL, or by CNN."""
    if name == CNN:
        return predict_cnn(fit_cnn(scene, train, seed, device), scene, test)
    learnt, asked = tuple(train.T), tuple(test.T)
    classifier = PER_PIXEL[name](seed).fit(scene.standardised(learnt), scene.labels[learnt])
    found: NDArray[np.integer] = classifier.predict(scene.standardised(asked))
    return found

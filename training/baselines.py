"""What people use today, on the same pixels: classifiers that look at one spectrum at a time."""

from __future__ import annotations

from typing import Any

from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

from training.datasets import LabelledScene
from training.evaluate import Scores, score
from training.splits import Pixels


def score_baselines(scene: LabelledScene, train: Pixels, test: Pixels, seed: int) -> dict[str, Scores]:
    """Scores on the test pixels of classifiers fitted to the training pixels' standardised spectra."""
    spectra = scene.standardised()
    learnt, judged = tuple(train.T), tuple(test.T)
    class_names = tuple(entry.name for entry in scene.legend)
    scores = {}
    for name, classifier in _classifiers(seed).items():
        classifier.fit(spectra[learnt], scene.labels[learnt])
        scores[name] = score(scene.labels[judged], classifier.predict(spectra[judged]), class_names)
    return scores


def _classifiers(seed: int) -> dict[str, Any]:
    return {
        "random forest": RandomForestClassifier(500, random_state=seed),
        "SVM": SVC(C=100.0),
        "logistic regression": LogisticRegression(max_iter=5000),
    }

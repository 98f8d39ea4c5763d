"""How often the 95 % intervals of a checked sample contain the truth: `python -m tests.coverage`.

Samples are drawn from six known truths: maps of different quality, with rare classes among them. For each figure
the table has the share of samples whose interval contains the truth, and the share in which the report says that the
class is too rare.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

from hyperscene.service.assessment.drawing import SampleOptions, allocate
from hyperscene.service.assessment.estimation import CheckedPoints, Estimate, estimate

PIXELS = 10_000_000


@dataclass(frozen=True)
class Truth:
    """Shares of a map's classes, and of the reference classes (columns) in each of them (rows)."""

    name: str
    weights: np.ndarray
    reference: np.ndarray

    @property
    def joint(self):
        return self.weights[:, None] * self.reference

    @property
    def pixels(self):
        return np.round(PIXELS * self.weights).astype(np.int64)

    def figures(self):
        """Overall accuracy, then user's accuracy, producer's accuracy and area of each class."""
        joint = self.joint
        correct = np.diag(joint)
        return np.concatenate([[correct.sum()], correct / joint.sum(1), correct / joint.sum(0), joint.sum(0)])

    def names(self):
        classes = range(1, len(self.weights) + 1)
        return ["OA", *(f"{kind} {number}" for kind in ("UA", "PA", "area") for number in classes)]


def made_truth(name, weights, users, seed):
    """A truth with these user's accuracies and random confusions."""
    generator = np.random.default_rng(seed)
    count = len(weights)
    wrong = generator.dirichlet(np.full(count - 1, 0.7), count)
    rows = [np.insert((1 - users[k]) * wrong[k], k, users[k]) for k in range(count)]
    return Truth(name, np.array(weights), np.array(rows))


DEFORESTATION = np.array([[66, 0, 5, 4], [0, 55, 8, 12], [1, 0, 153, 11], [2, 1, 9, 313]])
TRUTHS = (
    Truth("deforestation", np.array([0.02, 0.015, 0.32, 0.645]), DEFORESTATION / DEFORESTATION.sum(1)[:, None]),
    made_truth("excellent", [0.4, 0.3, 0.2, 0.08, 0.02], [0.98, 0.97, 0.96, 0.95, 0.9], 1),
    made_truth("good", [0.35, 0.25, 0.2, 0.12, 0.05, 0.03], [0.9, 0.88, 0.85, 0.9, 0.8, 0.75], 2),
    made_truth("fair", [0.5, 0.2, 0.15, 0.08, 0.05, 0.02], [0.8, 0.75, 0.7, 0.65, 0.6, 0.6], 3),
    made_truth("poor", [0.4, 0.3, 0.2, 0.1], [0.55, 0.5, 0.6, 0.4], 4),
    made_truth("rare", [0.7, 0.2, 0.07, 0.02, 0.007, 0.003], [0.95, 0.9, 0.85, 0.8, 0.7, 0.7], 5),
)


@dataclass(frozen=True)
class Coverage:
    """Of each figure: the share of intervals with the truth in it, ours and the textbook's, and of remarks."""

    truth: Truth
    ours: np.ndarray
    textbook: np.ndarray
    remarked: np.ndarray

    def rows(self):
        return zip(self.truth.names(), self.truth.figures(), self.ours, self.textbook, self.remarked, strict=True)


def measure(truth: Truth, samples: int, total: int = 600, seed: int = 0) -> Coverage:
    """Draw samples as `hyperscene assess sample` does, and compare their intervals with the truth."""
    generator = np.random.default_rng(seed)
    sizes = allocate(truth.pixels, SampleOptions(total=total))
    figures = truth.figures()
    ours, textbook, remarked = (np.zeros(len(figures)) for _ in range(3))
    for _ in range(samples):
        counts = np.array([generator.multinomial(n, row) for n, row in zip(sizes, truth.reference, strict=True)])
        found, is_remarked = figures_of(counts, truth)
        ours += [
            each.low is not None and each.low <= value <= each.high for each, value in zip(found, figures, strict=True)
        ]
        textbook += [
            each.standard_error is not None and abs(each.value - value) <= 1.96 * each.standard_error
            for each, value in zip(found, figures, strict=True)
        ]
        remarked += is_remarked
    return Coverage(truth, ours / samples, textbook / samples, remarked / samples)


def figures_of(counts: np.ndarray, truth: Truth) -> tuple[list[Estimate], np.ndarray]:
    """The estimates in the order of `Truth.figures`, and which of them the report calls too rare."""
    classes = len(counts)
    cells = np.indices(counts.shape).reshape(2, -1)
    mapped, reference = (np.repeat(numbers + 1, counts.ravel()) for numbers in cells)
    found = estimate(CheckedPoints(mapped - 1, mapped, reference, truth.weights * PIXELS, truth.pixels, classes))
    is_rare = [any("rare" in remark or "producer" in remark for remark in entry.remarks) for entry in found.classes]
    estimates = [found.overall_accuracy]
    for part in ("users_accuracy", "producers_accuracy", "area_share"):
        estimates += [getattr(entry, part) for entry in found.classes]
    return estimates, np.array([False] * (1 + classes) + is_rare + is_rare)


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--total", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("| truth | figure | true value | covered, % | textbook's interval, % | said to be too rare, % |")
    print("|---|---|---|---|---|---|")
    for truth in TRUTHS:
        for name, value, ours, textbook, remarked in measure(
            truth, options.samples, options.total, options.seed
        ).rows():
            shares = " | ".join(f"{100 * share:.1f}" for share in (ours, textbook, remarked))
            print(f"| {truth.name} | {name} | {value:.4f} | {shares} |", flush=True)


if __name__ == "__main__":
    main()

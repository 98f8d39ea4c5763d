"""A teacher for the whole scene: spectra classified one by one, then carried along the scene's own edges.

A network that sees a few labelled patches learns their surroundings by heart, and fails where those end. So it is not
taught by the labels alone: a teacher answers for every pixel of the scene, and the network learns its answers. The
teacher knows spectra (two linear classifiers) and where the scene changes (a random walk between neighbours that look
alike, which starts at the labels). How sure each classifier may be and how far neighbours are trusted is chosen by
cross-validation inside the training labels, with pixels held out that lie as far from the others as the pixels asked
for lie from the labels.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.cluster.vq import kmeans2
from scipy.spatial import cKDTree
from scipy.special import softmax
from scipy.stats import gmean, wasserstein_distance
from sklearn.covariance import ledoit_wolf
from sklearn.linear_model import LogisticRegression

from training.calibration import fit_temperature, unlikeliness
from training.datasets import LabelledScene
from training.splits import Pixels, Split

COMPONENTS = 30  # of the noise-adjusted transform: what the discriminant looks at
EDGE_COMPONENTS = 10  # of the same: what tells neighbours apart
STATISTICS_PIXELS = 200_000  # from which the transform is found
PAIRS_PER_BAND = 10  # of neighbours, below which the noise is not known well enough
MOST_LABELS = 5_000  # that are held out in turn; more say no more and take long to gather
WEAKEST_TIE = 0.01  # odd pixels of a field are still its pixels; also keeps the graph in one piece
# How hard a pixel is pulled to its own spectrum's answer, where neighbours that look alike pull with about 8 * 0.4.
PULLS = (math.inf, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
# With fewer labels a class than this on average, smoothed spectra are tried as voices too: noise matters most then.
# 0.1 is to a spectrum that is smoothed what a pull is to an answer: averages over some 5 pixels to each side.
FEW_LABELS = 6
SMOOTHING_PULL = 0.1
WORTH_A_VOICE = 0.05  # nats a pixel that smoothed spectra must make held-out pixels likelier by
# Share of what spectra alone leave unlikely that neighbours must explain, where pixels that lie far enough from the
# labels cannot be held out. HyMap Berlin: at most 0.02, and neighbours cost 1 to 2 points; SalinasA: 0.2 and more.
WORTH_NEIGHBOURS = 0.05
COLUMNS_AT_ONCE = 16  # that are smoothed: bounds the memory
FOLDS = 5
REPEATS = 2  # of the cross-validation, with other folds; larger scenes take long enough once
LARGE_SCENE_PIXELS = 100_000
ASKED_PIXELS = 2000  # whose distances from the labels are looked at
TOLERANCE = 1e-4  # of a step; answers were then off by at most 0.001 at the weakest pull
MOST_ITERATIONS = 1000
SHARPEST = 0.1  # temperature of the teacher's answers
ALIKE = 1e-3  # pulls whose likelihoods differ by less, in nats a pixel, are as good as each other
EVEN = 2  # classes of which none has more than so many times the labels of another were labelled by class
SMALLEST_PROBABILITY = 1e-4  # one odd pixel must not decide alone

VOICES = 2  # that spectra have

Probabilities = NDArray[np.float32]  # (pixels, classes)
Weights = NDArray[np.float32]  # (features, classes)
Offsets = NDArray[np.float32]  # (classes)
Places = NDArray[np.int64] | slice
ALL_PLACES = slice(None)


@dataclass(frozen=True)
class Choice:
    """What cross-validation found: the pull, and how often it and spectra alone were right about held-out pixels."""

    pull: float
    temperature: float  # of the answers, by the held-out pixels
    voice_temperatures: tuple[float, ...]  # of each classifier's own answers, before they are averaged
    accuracy: float | None  # None: no training pixel could be held out
    spectral_accuracy: float | None
    held_out_px: float  # median distance of a held-out pixel from the nearest label it was judged by
    asked_px: float  # median distance of the pixels asked for from the nearest label
    is_smoothed: bool = False  # smoothed spectra have a voice too

    @property
    def is_spectra_alone(self) -> bool:
        """Whether every pixel is answered for by itself, so that mistakes lie scattered."""
        return math.isinf(self.pull)

    def _shares(self) -> dict[str, float]:
        if self.accuracy is None or self.spectral_accuracy is None:
            return {}
        return {
            "held_out_accuracy": round(self.accuracy, 4),
            "held_out_accuracy_of_spectra_alone": round(self.spectral_accuracy, 4),
        }

    def record(self) -> dict[str, float | str | list[float]]:
        """The choice as it stands in a manifest and in a study's cells."""
        return {
            "pull": "spectra alone" if self.is_spectra_alone else self.pull,
            **({"smoothed": True} if self.is_smoothed else {}),
            "temperature": round(self.temperature, 4),
            "voice_temperatures": [round(temperature, 4) for temperature in self.voice_temperatures],
            **self._shares(),
            "held_out_distance_px": round(self.held_out_px, 1),
            "asked_distance_px": round(self.asked_px, 1),
        }

    def __str__(self) -> str:
        if self.accuracy is None or self.spectral_accuracy is None:
            return "taught by spectra alone: too few labels to hold some out and see whether neighbours help"
        how = (
            "spectra alone, since neighbours did not help"
            if self.is_spectra_alone
            else f"spectra and neighbours, with a pull of {self.pull:g} to a pixel's own spectrum"
        )
        smoothed = "smoothed spectra, " if self.is_smoothed else ""
        return (
            f"taught by {smoothed}{how} (held-out training pixels {100 * self.accuracy:.1f} % right, by spectra alone "
            f"{100 * self.spectral_accuracy:.1f} %; they lay {self.held_out_px:.0f} px from the labels used, those "
            f"asked for lie {self.asked_px:.0f} px)"
        )


@dataclass(frozen=True)
class Lesson:
    """The teacher's answers for all pixels of a scene (rows * cols, classes); rows of zeros where it holds no data."""

    probabilities: Probabilities
    choice: Choice
    remembered_s: float = 0.0  # that it would have taken, had it not been at hand


def teach(scene: LabelledScene, split: Split, seed: int) -> Lesson:
    """Answers for the whole scene from the labels of its training pixels."""
    rows, cols = scene.valid.shape
    places = np.ravel_multi_index((split.train[:, 0], split.train[:, 1]), (rows, cols))
    classes = scene.labels.ravel()[places].astype(np.int64) - 1
    spectra = Spectra.of(scene)
    graph = Graph.of(spectra.components[:, :EDGE_COMPONENTS], scene.valid)
    is_tried = len(places) < FEW_LABELS * len(np.unique(classes))
    heard = [spectra, spectra.smoothed(graph)] if is_tried else [spectra]
    asked = np.ravel_multi_index((split.test[:, 0], split.test[:, 1]), (rows, cols))
    first = _agree(spectra.voices(places, classes), (1.0, 1.0), len(scene.legend))
    expected = (first[asked] if len(asked) else first[scene.valid.ravel()]).mean(axis=0)
    choice = _choose(heard, graph, places, classes, split, expected, seed)
    voices = _voices(heard if choice.is_smoothed else heard[:1], places, classes)
    spectral = _agree(voices, choice.voice_temperatures, len(scene.legend))
    probabilities = next(graph.walk(spectral, places, classes, (choice.pull,)))
    # A walk far from its labels is right more often than it is sure; a network learns sure answers sooner.
    sharpened = np.power(probabilities, 1 / min(1.0, choice.temperature))
    sharpened /= np.maximum(sharpened.sum(axis=1, keepdims=True), 1e-30)
    sharpened[~scene.valid.ravel()] = 0
    return Lesson(sharpened, choice)


Teach = Callable[[LabelledScene, Split, int], Lesson]


class RememberingTeacher:
    """`teach` that keeps its last lesson: cells of a study differ in their networks more often than in their labels."""

    def __init__(self) -> None:
        self._asked: tuple[LabelledScene, Split, int] | None = None
        self._remembered: Lesson | None = None

    def __call__(self, scene: LabelledScene, split: Split, seed: int) -> Lesson:
        known = self._asked
        if self._remembered and known and known[0] is scene and known[1] is split and known[2] == seed:
            return self._remembered
        began = time.perf_counter()
        lesson = teach(scene, split, seed)
        self._asked = (scene, split, seed)
        self._remembered = replace(lesson, remembered_s=round(time.perf_counter() - began, 3))
        return lesson


@dataclass(frozen=True)
class Voice:
    """A linear classifier of spectra, taught by some labels."""

    spectra: NDArray[np.float32]  # (pixels, features)
    weights: NDArray[np.float32]  # (features, classes that have labels)
    offsets: NDArray[np.float32]
    present: NDArray[np.int64]  # which classes those are

    def answer(self, class_count: int, temperature: float = 1.0, places: Places = ALL_PLACES) -> Probabilities:
        """Probabilities of pixels, sharper or softer by a temperature."""
        scores = self.spectra[places] @ self.weights + self.offsets
        found = np.zeros((len(scores), class_count), np.float32)
        found[:, self.present] = softmax(scores / np.float32(temperature), axis=1)
        return found


def _voices(heard: Sequence[Spectra], places: NDArray[np.int64], classes: NDArray[np.int64]) -> list[Voice]:
    return [voice for spectra in heard for voice in spectra.voices(places, classes)]


def _agree(voices: Sequence[Voice], temperatures: Sequence[float], class_count: int) -> Probabilities:
    """The mean of what several say about all pixels."""
    found = zip(voices, temperatures, strict=True)
    return np.mean([voice.answer(class_count, temperature) for voice, temperature in found], axis=0)


def _choose(
    heard: Sequence[Spectra],
    graph: Graph,
    places: NDArray[np.int64],
    classes: NDArray[np.int64],
    split: Split,
    expected: NDArray[np.float32],
    seed: int,
) -> Choice:
    """The voices and the pull that make the held-out training pixels likeliest, each with a temperature that suits it.

    A voice that is too sure would be heard alone, so each has a temperature of its own before they are averaged.
    Likelihood, because a hundred pixels are too few for shares of right answers to differ by more than chance. Of pulls
    that are alike the weakest is taken: where every held-out pixel is sure, neighbours settle the odd ones.
    """
    class_count = len(expected)
    weight_of = _weights(classes, expected)
    generator = np.random.default_rng(seed)
    train = split.train
    if len(train) > MOST_LABELS:
        some = np.sort(generator.choice(len(train), MOST_LABELS, replace=False))
        train, places, classes = train[some], places[some], classes[some]
    is_large = graph.ties.shape[0] > LARGE_SCENE_PIXELS
    repeats = [matched_folds(train, split.test, generator) for _ in range(1 if is_large else REPEATS)]
    held_out_px, asked_px = float(np.median([folds.held_out_px for folds in repeats])), repeats[-1].asked_px
    is_too_near = held_out_px < asked_px / 2  # near pixels are alike: neighbours would look better than they will be
    if is_too_near:
        heard = heard[:1]
    trials = [trial for folds in repeats for trial in _trials(heard, train, places, classes, folds)]
    if not trials:
        return Choice(math.inf, 1.0, (1.0, 1.0), None, None, 0.0, asked_px)
    truth = np.concatenate([classes[trial.judged] for trial in trials])
    own = _voice_temperatures(trials, places, truth, class_count)
    counts = [VOICES * (number + 1) for number in range(len(heard))]
    ways = [(count, pull) for count in counts for pull in PULLS]
    held_out = [
        logits for count in counts for logits in _walk_trials(graph, trials, own[:count], places, classes, class_count)
    ]
    temperatures = [fit_temperature(logits, truth, SHARPEST) for logits in held_out]
    unlikely = np.array(
        [
            unlikeliness(logits, truth, temperature, weight_of[truth])
            for logits, temperature in zip(held_out, temperatures, strict=True)
        ]
    )
    unlikely[len(PULLS) :] += WORTH_A_VOICE
    if is_too_near:
        unlikely[1:] += WORTH_NEIGHBOURS * unlikely[0]
    best = int(np.flatnonzero(unlikely <= unlikely.min() + ALIKE)[-1])
    accuracy = [float((logits.argmax(axis=1) == truth).mean()) for logits in held_out]
    count, pull = ways[best]
    return Choice(
        pull,
        temperatures[best],
        own[:count],
        accuracy[best],
        accuracy[0],
        held_out_px,
        asked_px,
        is_smoothed=count > VOICES,
    )


@dataclass(frozen=True)
class Trial:
    """Some training pixels held out, and voices that know the labels of the others."""

    judged: NDArray[np.bool_]
    anchors: NDArray[np.bool_]  # where a walk starts
    voices: list[Voice]


def _trials(
    heard: Sequence[Spectra],
    train: Pixels,
    places: NDArray[np.int64],
    classes: NDArray[np.int64],
    folds: Folds,
) -> Iterator[Trial]:
    for fold in range(FOLDS):
        held = folds.fold_of == fold
        # A class that only the held-out pixels have could not be found by anybody.
        judged = held & np.isin(classes, classes[~held])
        if not judged.any() or len(np.unique(classes[~held])) < 2:
            continue
        # Labels nearer to the held-out pixels than labels mostly lie to those asked for would help too much.
        distance, _ = cKDTree(train[held]).query(train)
        yield Trial(judged, ~held & (distance >= folds.asked_px), _voices(heard, places[~held], classes[~held]))


def _voice_temperatures(
    trials: Sequence[Trial], places: NDArray[np.int64], truth: NDArray[np.int64], class_count: int
) -> tuple[float, ...]:
    """How much softer or sharper each voice has to speak for none to drown the others.

    Held-out pixels are often harder than those asked for, so only how the temperatures differ is believed: their
    geometric mean is 1.
    """
    found = []
    for number in range(len(trials[0].voices)):
        answers = [trial.voices[number].answer(class_count, places=places[trial.judged]) for trial in trials]
        found.append(fit_temperature(_logits(answers), truth, SHARPEST))
    return tuple(float(temperature) for temperature in np.array(found) / gmean(found))


def _walk_trials(
    graph: Graph,
    trials: Sequence[Trial],
    temperatures: Sequence[float],
    places: NDArray[np.int64],
    classes: NDArray[np.int64],
    class_count: int,
) -> list[Probabilities]:
    """For each pull: what the first voices, as many as have temperatures, and neighbours say of held-out pixels."""
    answers: list[list[Probabilities]] = [[] for _ in PULLS]
    for trial in trials:
        spectral = _agree(trial.voices[: len(temperatures)], temperatures, class_count)
        walks = graph.walk(spectral, places[trial.anchors], classes[trial.anchors], PULLS)
        for found, walked in zip(answers, walks, strict=True):
            found.append(walked[places[trial.judged]])
    return [_logits(found) for found in answers]


def _logits(found: Sequence[Probabilities]) -> Probabilities:
    logits: Probabilities = np.log(np.maximum(np.concatenate(found), SMALLEST_PROBABILITY))
    return logits


def _weights(classes: NDArray[np.int64], expected: NDArray[np.float32]) -> NDArray[np.float64]:
    """What a held-out pixel of each class counts.

    As many labels of every class say nothing of how common it is: there a class counts by its `expected` share of the
    pixels asked for. Otherwise the labels' own shares are believed, which are better known than expected ones.
    """
    counts = np.bincount(classes, minlength=len(expected))
    if counts.max() > EVEN * counts[counts > 0].min():
        return np.ones(len(expected))
    weights: NDArray[np.float64] = np.maximum(expected, SMALLEST_PROBABILITY) / np.maximum(counts, 1)
    return weights


@dataclass(frozen=True)
class Folds:
    """Which fold each training pixel is held out with."""

    fold_of: NDArray[np.int64]
    held_out_px: float
    asked_px: float


def matched_folds(train: Pixels, asked: Pixels, generator: np.random.Generator) -> Folds:
    """Folds whose held-out pixels lie about as far from the rest as the pixels asked for lie from all.

    Training pixels are gathered into ever larger clumps, and whole clumps are held out; the size of clumps is taken
    whose distances resemble those asked for most.
    """
    sample = asked[generator.permutation(len(asked))[:ASKED_PIXELS]]
    wanted = cKDTree(train).query(sample)[0]
    best, best_folds = math.inf, None
    clumps = len(train)
    while True:
        fold_of = _deal(_clump(train, clumps, generator), generator)
        distances = _distances(train, fold_of)
        difference = wasserstein_distance(distances, wanted)
        if difference < best:
            best, best_folds = difference, Folds(fold_of, float(np.median(distances)), float(np.median(wanted)))
        if clumps <= FOLDS:
            break
        clumps = max(FOLDS, clumps // 2)
    assert best_folds is not None
    return best_folds


def _clump(train: Pixels, clumps: int, generator: np.random.Generator) -> NDArray[np.int64]:
    if clumps >= len(train):
        return np.arange(len(train))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of clumps that stay empty, which are as good as none
        _, clump_of = kmeans2(train.astype(np.float64), clumps, minit="points", seed=generator)
    return clump_of.astype(np.int64)


def _deal(clump_of: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """Give clumps to folds, large ones first, each to the fold that has fewest pixels."""
    sizes = np.bincount(clump_of)
    fold_of_clump, held = np.zeros(len(sizes), np.int64), np.zeros(FOLDS)
    for clump in np.argsort(-(sizes + generator.random(len(sizes)) / 2)):
        fold = int(np.argmin(held + generator.random(FOLDS) / 2))
        fold_of_clump[clump] = fold
        held[fold] += sizes[clump]
    return fold_of_clump[clump_of]


def _distances(train: Pixels, fold_of: NDArray[np.int64]) -> NDArray[np.float64]:
    distances = np.zeros(len(train))
    for fold in np.unique(fold_of):
        held = fold_of == fold
        if not held.all():
            distances[held] = cKDTree(train[~held]).query(train[held])[0]
    return distances


@dataclass(frozen=True)
class Spectra:
    """A scene's spectra as two linear classifiers like them: standardised, and adjusted for the scene's noise."""

    standardised: NDArray[np.float32]  # (pixels, bands)
    components: NDArray[np.float32]  # (pixels, COMPONENTS), noise of variance 1 in each, most signal first

    @classmethod
    def of(cls, scene: LabelledScene) -> Spectra:
        """The noise is what differs between neighbours; its covariance is made white, and the rest sorted by size."""
        _, cols, bands = scene.cube.shape
        flat = scene.standardised().reshape(-1, bands)
        upper = _some(np.flatnonzero(scene.valid[1:] & scene.valid[:-1]))
        whitener = _whitener((flat[upper + cols] - flat[upper]) / math.sqrt(2))
        known = flat[_some(np.flatnonzero(scene.valid))] @ whitener
        spread = np.cov(known, rowvar=False).reshape(bands, bands) if len(known) > 1 else np.eye(bands)
        sizes, directions = np.linalg.eigh(spread)
        chosen = directions[:, np.argsort(-sizes)[:COMPONENTS]]
        return cls(flat, flat @ (whitener @ chosen).astype(np.float32))

    def smoothed(self, graph: Graph) -> Spectra:
        """Every pixel's spectrum averaged with those of its neighbours that look alike, and of theirs."""
        return Spectra(graph.smooth(self.standardised), graph.smooth(self.components))

    def voices(self, places: NDArray[np.int64], classes: NDArray[np.int64]) -> tuple[Voice, Voice]:
        """A logistic regression and a linear discriminant, by the labels of some places."""
        present, numbers = np.unique(classes, return_inverse=True)
        return (
            Voice(self.standardised, *_regression(self.standardised[places], numbers), present),
            Voice(self.components, *_discriminant(self.components[places], numbers), present),
        )


def _regression(learnt: NDArray[np.float32], classes: NDArray[np.int64]) -> tuple[Weights, Offsets]:
    """Multinomial logistic regression."""
    fitted = LogisticRegression(C=10.0, max_iter=2000).fit(learnt, classes)
    weights, offsets = fitted.coef_.T, fitted.intercept_
    if len(offsets) == 1:  # of two classes: how much the second is ahead
        weights, offsets = np.hstack([-weights, weights]) / 2, np.concatenate([-offsets, offsets]) / 2
    return weights.astype(np.float32), offsets.astype(np.float32)


def _discriminant(found: NDArray[np.float32], classes: NDArray[np.int64]) -> tuple[Weights, Offsets]:
    """Linear discriminant with one covariance for all classes, shrunk as Ledoit and Wolf do."""
    learnt = found.astype(np.float64)
    counts = np.bincount(classes)
    means = np.stack([learnt[classes == value].mean(axis=0) for value in range(len(counts))])
    covariance, _ = ledoit_wolf(learnt - means[classes], assume_centered=True)
    # One more pixel with the noise's own covariance: a class of one pixel each would leave nothing to divide by.
    covariance = (covariance * len(classes) + np.eye(len(covariance))) / (len(classes) + 1)
    weights = np.linalg.solve(covariance, means.T)  # (components, classes)
    offsets = np.log(counts / counts.sum()) - (means.T * weights).sum(axis=0) / 2
    return weights.astype(np.float32), offsets.astype(np.float32)


def _some(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """As many of the places as statistics need, from all over."""
    return places[:: max(1, len(places) // STATISTICS_PIXELS)]


def _whitener(noise: NDArray[np.float32]) -> NDArray[np.float32]:
    bands = noise.shape[1]
    if len(noise) < 2:
        return np.eye(bands, dtype=np.float32)
    if len(noise) < PAIRS_PER_BAND * bands:  # too few to know every direction: shrink
        covariance = ledoit_wolf(noise, assume_centered=True)[0]
    else:
        covariance = np.cov(noise, rowvar=False).reshape(bands, bands)
    sizes, directions = np.linalg.eigh(covariance + 1e-6 * np.eye(bands))
    return (directions / np.sqrt(np.maximum(sizes, 1e-6))).astype(np.float32)


@dataclass(frozen=True)
class Graph:
    """The scene's pixels, each tied to its eight neighbours the more the likelier they look."""

    ties: sparse.csr_array  # (pixels, pixels), symmetric

    @classmethod
    def of(cls, components: NDArray[np.float32], valid: NDArray[np.bool_]) -> Graph:
        """Ties fall off with the squared difference, measured against the scene's median."""
        rows, cols = valid.shape
        place = np.arange(rows * cols).reshape(rows, cols)
        pairs = [
            (place[:, :-1], place[:, 1:]),
            (place[:-1], place[1:]),
            (place[:-1, :-1], place[1:, 1:]),
            (place[:-1, 1:], place[1:, :-1]),
        ]
        first = np.concatenate([one.ravel() for one, _ in pairs])
        second = np.concatenate([other.ravel() for _, other in pairs])
        both = valid.ravel()[first] & valid.ravel()[second]
        first, second = first[both], second[both]
        difference = np.square(components[first] - components[second]).sum(axis=1)
        typical = float(np.median(difference)) if len(difference) else 1.0
        strength = np.exp(-difference / max(typical, 1e-12)) + WEAKEST_TIE
        upper = sparse.coo_array((strength, (first, second)), shape=(rows * cols, rows * cols))
        return cls((upper + upper.T).tocsr().astype(np.float32))

    def smooth(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Values (pixels, n): each the mean of its neighbours', weighted by ties, and of what it was."""
        diagonal = np.asarray(self.ties.sum(axis=1), np.float32).reshape(-1, 1) + np.float32(SMOOTHING_PULL)
        found = np.empty_like(values)
        for first in range(0, values.shape[1], COLUMNS_AT_ONCE):
            some = slice(first, first + COLUMNS_AT_ONCE)
            found[:, some] = _solve(self.ties, diagonal, np.float32(SMOOTHING_PULL) * values[:, some], values[:, some])
        return found

    def walk(
        self,
        spectral: Probabilities,
        places: NDArray[np.int64],
        classes: NDArray[np.int64],
        pulls: tuple[float, ...],
    ) -> Iterator[Probabilities]:
        """For each pull: probabilities that agree with the labels, with neighbours that look alike, and with spectra.

        Every pixel's answer is the mean of its neighbours', weighted by ties, and of its own spectrum's, weighted by
        the pull. Pulls from strong to weak: each starts from the answer before.
        """
        free = np.ones(len(spectral), bool)
        free[places] = False
        known = np.zeros_like(spectral)
        known[places, classes] = 1
        from_known = (self.ties @ known)[free]
        inner = self.ties[free][:, free]
        degree = np.asarray(self.ties.sum(axis=1), np.float32).ravel()[free, None]
        answer = spectral[free]
        for pull in pulls:
            if not math.isinf(pull):
                answer = _solve(inner, degree + pull, from_known + pull * spectral[free], answer)
            whole = known.copy()
            whole[free] = np.maximum(answer, 0)  # the solver's rounding may go below
            yield whole


def _solve(
    ties: sparse.csr_array, diagonal: NDArray[np.float32], right: Probabilities, start: Probabilities
) -> Probabilities:
    """x with (diagonal - ties) x = right, by conjugate gradients with the diagonal taken out, a column a class."""
    answer = start.copy()
    rest = right - (diagonal * answer - ties @ answer)
    step = rest / diagonal
    direction = step.copy()
    weight = (rest * step).sum(axis=0)
    for _ in range(MOST_ITERATIONS):
        if np.abs(step).max() < TOLERANCE:
            break
        pushed = diagonal * direction - ties @ direction
        length = weight / np.maximum((direction * pushed).sum(axis=0), 1e-30)
        answer += length * direction
        rest -= length * pushed
        step = rest / diagonal
        previous, weight = weight, (rest * step).sum(axis=0)
        direction = step + (weight / np.maximum(previous, 1e-30)) * direction
    return answer

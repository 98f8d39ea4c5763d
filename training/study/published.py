"""The paper's three scenes as published, and the scores of its two tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.io import whosmat
from scipy.io.matlab import MatReadError

from hyperscene.errors import LabelsUnusable, SceneUnreadable, SceneUnusable
from hyperscene.service.mapping.gdal import ignore_missing_georeference
from hyperscene.service.mapping.scene_files import ENVI_SUFFIXES
from hyperscene.training.data.datasets import LabelledFiles, LabelledScene, load_labelled_scene
from hyperscene.training.data.label_files import ARRAY_SUFFIXES

# The paper's protocol: these shares of every class train and validate, the other 98 % test.
FRACTION = 0.01
VAL_FRACTION = 0.01

# Our names of the score functions and the paper's, in the order of its columns.
COLUMNS = {
    "cosine_squared": "CS²",
    "cosine": "CS",
    "scaled_dot_product": "SDP",
    "dot_product": "DP",
    "additive": "Add",
    "self_attention": "SA",
    "mixed_cosine_squared": "MSA-CS²",
    "cross_scaled_dot_product": "C-SDP",
    "cross_cosine_squared": "C-CS²",
    "cross_cosine": "C-CS",
    "cross_additive": "C-Add",
}

# If a scene exists in several formats, the first of these is read; "" is ENVI data without a suffix.
SUFFIXES = (*ARRAY_SUFFIXES, ".tif", ".tiff", *ENVI_SUFFIXES, "")
MAX_FOLDER_DEPTH = 3  # publishers nest their folders
MAX_FILES_LISTED = 8  # in an error message
# Copies of a scene differ by a few pixels; a larger difference means another version of the labels.
COUNT_TOLERANCE = 0.01


@dataclass(frozen=True)
class PublishedScores:
    """One network's scores in Table I, in percent."""

    oa: float
    aa: float
    kappa: float


@dataclass(frozen=True)
class PublishedScene:
    """The layout of a scene of the paper, and the paper's scores."""

    title: str
    source: str
    rows: int
    cols: int
    bands: int
    cube_files: tuple[str, ...]  # as published, the best known first
    label_files: tuple[str, ...]
    cube_variable: str  # in the .mat files; others are recognised by shape
    label_variable: str
    class_names: tuple[str, ...]  # of the label values 1, 2, 3 and so on
    class_pixels: tuple[int | None, ...]  # None: not known
    figures: Mapping[str, PublishedScores]  # by our names of the score functions

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.rows, self.cols, self.bands

    @property
    def classes(self) -> str:
        """The class names in the form of `--classes`."""
        return ",".join(f"{value}={name}" for value, name in enumerate(self.class_names, start=1))


def _figures(kappa: Sequence[float], oa: Sequence[float], aa: Sequence[float]) -> dict[str, PublishedScores]:
    """Table I as printed: three rows for a scene, a column for each score function."""
    columns = zip(COLUMNS, oa, aa, kappa, strict=True)
    return {name: PublishedScores(oa, aa, kappa) for name, oa, aa, kappa in columns}


PUBLISHED = {
    "salinas": PublishedScene(
        title="Salinas",
        source="https://www.ehu.eus/ccwintco/index.php/Hyperspectral_Remote_Sensing_Scenes",
        rows=512,
        cols=217,
        bands=204,  # of AVIRIS' 224; the others see water vapour
        cube_files=("Salinas_corrected.mat", "Salinas.mat"),
        label_files=("Salinas_gt.mat",),
        cube_variable="salinas_corrected",
        label_variable="salinas_gt",
        class_names=(
            "Brocoli_green_weeds_1", "Brocoli_green_weeds_2", "Fallow", "Fallow_rough_plow", "Fallow_smooth", "Stubble",
            "Celery", "Grapes_untrained", "Soil_vinyard_develop", "Corn_senesced_green_weeds", "Lettuce_romaine_4wk",
            "Lettuce_romaine_5wk", "Lettuce_romaine_6wk", "Lettuce_romaine_7wk", "Vinyard_untrained",
            "Vinyard_vertical_trellis",
        ),
        class_pixels=(
            2009, 3726, 1976, 1394, 2678, 3959, 3579, 11271, 6203, 3278, 1068, 1927, 916, 1070, 7268, 1807,
        ),
        figures=_figures(
            kappa=(99.15, 98.60, 99.18, 97.75, 98.93, 99.24, 99.23, 98.76, 99.33, 98.16, 98.75),
            oa=(99.23, 98.74, 99.26, 97.98, 99.04, 99.32, 99.31, 98.88, 99.40, 98.35, 98.87),
            aa=(99.18, 98.83, 99.06, 98.02, 99.03, 99.20, 99.30, 98.99, 99.18, 98.53, 99.09),
        ),
    ),
    "honghu": PublishedScene(
        title="WHU-Hi-HongHu",
        source="http://rsidea.whu.edu.cn/resource_WHUHi_sharing.htm",
        rows=940,
        cols=475,
        bands=270,
        cube_files=("WHU_Hi_HongHu.mat", "WHU-Hi-HongHu.tif", "WHU-Hi-HongHu.bsq", "WHU-Hi-HongHu"),
        label_files=("WHU_Hi_HongHu_gt.mat", "WHU-Hi-HongHu_gt.tif", "WHU-Hi-HongHu_gt.bsq", "WHU-Hi-HongHu_gt"),
        cube_variable="WHU_Hi_HongHu",
        label_variable="WHU_Hi_HongHu_gt",
        class_names=(
            "Red roof", "Road", "Bare soil", "Cotton", "Cotton firewood", "Rape", "Chinese cabbage", "Pakchoi",
            "Cabbage", "Tuber mustard", "Brassica parachinensis", "Brassica chinensis", "Small Brassica chinensis",
            "Lactuca sativa", "Celtuce", "Film covered lettuce", "Romaine lettuce", "Carrot", "White radish",
            "Garlic sprout", "Broad bean", "Tree",
        ),
        class_pixels=(
            14041, 3512, 21821, 163285, 6218, 44557, 24103, 4054, 10819, 12394, 11015, 8954, 22507, 7356, 1002, 7262,
            3010, 3217, 8712, 3486, 1328, 4040,
        ),
        figures=_figures(
            kappa=(96.94, 97.02, 97.87, 97.41, 97.30, 97.68, 97.21, 97.63, 96.29, 97.22, 97.09),
            oa=(97.58, 97.64, 98.32, 97.95, 97.87, 98.16, 97.80, 98.12, 97.06, 97.80, 97.69),
            aa=(93.05, 92.38, 94.48, 93.77, 92.79, 94.86, 93.74, 94.21, 88.62, 92.72, 93.74),
        ),
    ),
    "tangdaowan": PublishedScene(
        title="QUH-Tangdaowan",
        source="https://github.com/RsAI-lab/QUH-classification-dataset",
        rows=1740,
        cols=860,
        bands=176,
        cube_files=("QUH-Tangdaowan.mat",),
        label_files=("QUH-Tangdaowan_GT.mat",),
        cube_variable="Tangdaowan",
        label_variable="TangdaowanGT",
        class_names=(
            "Rubber track", "Flagging", "Sandy", "Asphalt", "Boardwalk", "Rocky shallows", "Grassland", "Bulrush",
            "Gravel road", "Ligustrum vicaryi", "Coniferous pine", "Spiraea", "Bare soil", "Buxus sinica",
            "Photinia serrulata", "Populus", "Ulmus pumila L", "Seawater",
        ),
        # The sums of the publisher's own training and test masks, which hold no pixel of the last two classes.
        class_pixels=(
            25849, 55553, 34037, 60690, 1862, 37125, 14127, 64087, 30695, 1783, 21236, 749, 1686, 886, 14020, 140904,
            None, None,
        ),
        figures=_figures(
            kappa=(98.17, 98.68, 98.30, 98.19, 98.51, 98.32, 98.31, 98.21, 98.38, 98.41, 98.56),
            oa=(98.39, 98.84, 98.51, 98.41, 98.69, 98.52, 98.52, 98.43, 98.58, 98.60, 98.74),
            aa=(94.92, 97.23, 95.88, 93.90, 96.51, 93.82, 95.80, 95.41, 95.51, 97.42, 96.27),
        ),
    ),
}  # fmt: skip


Spread = tuple[float, float]  # mean and standard deviation of overall accuracy, in percent

# Table II as it is printed, scene by scene in the order of PUBLISHED, with our names of its rows.
TABLE_TWO: dict[str, dict[str, tuple[Spread, Spread, Spread]]] = {
    "Normalization": {
        "None": ((98.11, 0.12), (97.64, 0.15), (98.42, 0.11)),
        "Query only": ((98.74, 0.09), (97.93, 0.12), (98.58, 0.10)),
        "Key only": ((98.69, 0.10), (97.89, 0.13), (98.55, 0.09)),
        "Query + Key": ((99.24, 0.05), (98.32, 0.07), (98.84, 0.06)),
    },
    "Squaring strategy": {
        "Cosine": ((99.07, 0.07), (98.21, 0.09), (98.71, 0.08)),
        "|cosine|": ((99.11, 0.06), (98.24, 0.08), (98.74, 0.07)),
        "Cosine²": ((99.24, 0.05), (98.32, 0.07), (98.84, 0.06)),
        "Temp.-scaled cosine²": ((99.19, 0.06), (98.28, 0.08), (98.79, 0.07)),
    },
    "Positional encoding": {
        "None": ((98.63, 0.11), (97.71, 0.14), (98.33, 0.12)),
        "Sinusoidal": ((99.12, 0.07), (98.11, 0.09), (98.68, 0.08)),
        "Learnable": ((99.24, 0.05), (98.32, 0.07), (98.84, 0.06)),
    },
    "Head number": {
        "2 heads": ((99.08, 0.08), (98.06, 0.10), (98.66, 0.09)),
        "4 heads": ((99.24, 0.05), (98.32, 0.07), (98.84, 0.06)),
        "8 heads": ((99.17, 0.06), (98.21, 0.09), (98.76, 0.08)),
    },
    "Encoder depth": {
        "2 layers": ((98.96, 0.09), (97.94, 0.12), (98.57, 0.10)),
        "4 layers": ((99.24, 0.05), (98.32, 0.07), (98.84, 0.06)),
        "6 layers": ((99.19, 0.06), (98.27, 0.08), (98.79, 0.07)),
    },
    "Embedding dimension": {
        "32": ((98.88, 0.10), (97.97, 0.11), (98.51, 0.09)),
        "64": ((99.24, 0.05), (98.32, 0.07), (98.84, 0.06)),
        "128": ((99.21, 0.06), (98.29, 0.08), (98.80, 0.07)),
    },
    "Patch size": {
        "8 x 8": ((99.02, 0.08), (98.07, 0.10), (98.61, 0.09)),
        "16 x 16": ((99.31, 0.04), (98.24, 0.06), (98.79, 0.05)),
        "24 x 24": ((99.18, 0.06), (98.16, 0.08), (98.70, 0.07)),
    },
    "Spectral noise": {
        "30 dB": ((98.71, 0.07), (98.42, 0.08), (98.63, 0.07)),
        "20 dB": ((97.56, 0.11), (97.18, 0.13), (97.37, 0.12)),
        "10 dB": ((94.83, 0.18), (94.21, 0.20), (94.47, 0.19)),
    },
}  # fmt: skip


def find_files(published: PublishedScene, path: Path, labels: Path | None = None) -> LabelledFiles:
    """Find the cube and its labels in a folder, or beside a given cube; `labels` overrides where the labels are."""
    if not path.exists():
        raise SceneUnreadable(f"there is no {path}: give the folder that holds {published.cube_files[0]}, or that file")
    folder = path if path.is_dir() else path.parent
    known = list(_files(folder))
    if path.is_dir():
        cube = _best(published.cube_files, known, near=folder)
        if cube is None:
            raise SceneUnreadable(
                f"{path} holds no cube of {published.title}, called {' or '.join(published.cube_files)}, but "
                f"{_listed(known, folder)}: get it from {published.source}, or give the path of the cube itself"
            )
    elif _matches(path, published.label_files) is not None:
        raise SceneUnreadable(f"{path.name} holds the labels of {published.title}: give the cube, or their folder")
    else:
        cube = path
    labels = labels or _best(published.label_files, known, near=cube.parent)
    if labels is None:
        raise LabelsUnusable(
            f"{folder} holds no labels of {published.title}, called {' or '.join(published.label_files)}, but "
            f"{_listed(known, folder)}: get them from {published.source}, or name them with --labels"
        )
    return LabelledFiles(
        cube,
        labels,
        classes=published.classes,
        variable=_known_variable(cube, published.cube_variable),
        label_variable=_known_variable(labels, published.label_variable),
    )


def load_published(published: PublishedScene, files: LabelledFiles) -> LabelledScene:
    """Load the scene with its published class names; refuse another scene than the paper's."""
    # The labels are checked against the built-in names first, so that no message mentions --classes.
    with ignore_missing_georeference():
        scene = load_labelled_scene(replace(files, classes=None))
    warnings = require_layout(published, scene)
    names = zip(scene.legend, published.class_names, strict=True)
    legend = tuple(replace(entry, name=name) for entry, name in names)
    return replace(scene, legend=legend, warnings=(*scene.warnings, *warnings))


def require_layout(published: PublishedScene, scene: LabelledScene) -> list[str]:
    """Refuse a scene of another shape or with other classes; warn of classes with other numbers of pixels."""
    _require_shape(published, scene)
    _require_classes(published, scene)
    counts = np.bincount(scene.labels.ravel(), minlength=len(published.class_names) + 1)[1:].tolist()
    differing = [
        f"{name} {found} instead of {expected}"
        for name, found, expected in zip(published.class_names, counts, published.class_pixels, strict=True)
        if expected is not None and abs(found - expected) > COUNT_TOLERANCE * expected
    ]
    warning = (
        f"{len(differing)} of the classes have other numbers of labelled pixels than {published.title} as published "
        f"({', '.join(differing)}): the comparison with the paper uses different labels"
    )
    return [warning] if differing else []


def _require_shape(published: PublishedScene, scene: LabelledScene) -> None:
    found = scene.cube.shape
    if found == published.shape:
        return
    if sorted(found) == sorted(published.shape):
        remedy = "its axes are in another order: save it as rows x cols x bands"
    elif found[:2] == published.shape[:2]:
        remedy = f"its bands differ from the paper's: take {published.cube_files[0]} from {published.source}"
    else:
        remedy = (
            f"this is another scene, or part of one: take {published.cube_files[0]} from {published.source}, or "
            "study this one without --published"
        )
    raise SceneUnusable(
        f"{scene.name} is {_by(found)}, and {published.title} {_by(published.shape)} (rows x cols x bands); {remedy}"
    )


def _require_classes(published: PublishedScene, scene: LabelledScene) -> None:
    values = {entry.value for entry in scene.legend}
    expected = dict(enumerate(published.class_names, start=1))
    missing = [f"{value} ({name})" for value, name in expected.items() if value not in values]
    unknown = [str(value) for value in sorted(values - set(expected))]
    if not missing and not unknown:
        return
    lacks = f"no pixel of {', '.join(missing)}" if missing else ""
    has = f"the unknown value{'s' * (len(unknown) > 1)} {', '.join(unknown)}" if unknown else ""
    raise LabelsUnusable(
        f"{published.title} has {len(expected)} classes, values 1 to {len(expected)}, and these labels hold "
        f"{' and '.join(filter(None, (lacks, has)))}: take {published.label_files[0]} from {published.source}, whole"
    )


def _files(folder: Path, deep: int = MAX_FOLDER_DEPTH) -> Iterator[Path]:
    """Files that could be scenes or labels; those of the folder itself come first."""
    try:
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError:  # a folder without read permission
        return
    yield from (entry for entry in entries if entry.is_file() and _suffix(entry) in SUFFIXES)
    if deep > 1:
        for entry in entries:
            if entry.is_dir():
                yield from _files(entry, deep - 1)


def _best(names: tuple[str, ...], files: list[Path], near: Path) -> Path | None:
    """The file with one of the names: by folder, then by order of names, then by format."""

    def rank(file: Path) -> tuple[bool, int, int]:
        matched = _matches(file, names)
        assert matched is not None
        return file.parent != near, matched, SUFFIXES.index(_suffix(file))

    return min((file for file in files if _matches(file, names) is not None), key=rank, default=None)


def _matches(file: Path, names: tuple[str, ...]) -> int | None:
    """The index of the file's name; case, punctuation and the (1) of a second download are ignored."""
    known = [_plain(Path(name)) for name in names]
    return known.index(_plain(file)) if _plain(file) in known else None


def _plain(file: Path) -> str:
    return re.sub(r"\s*\(\d+\)$|[^a-z0-9]", "", file.name.removesuffix(file.suffix).lower())


def _suffix(file: Path) -> str:
    return file.suffix.lower()


def _known_variable(path: Path, name: str) -> str | None:
    """The published variable if the .mat file has it; None lets the shapes decide."""
    if _suffix(path) != ".mat":
        return None
    import h5py

    try:
        if h5py.is_hdf5(path):
            with h5py.File(path) as file:
                return name if name in file else None
        return name if name in {found for found, _, _ in whosmat(path)} else None
    except (ValueError, OSError, TypeError, NotImplementedError, MatReadError):
        return None  # reading the file will report the error


def _by(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape))


def _listed(files: list[Path], folder: Path) -> str:
    names = [str(file.relative_to(folder)) for file in files]
    more = f" and {len(names) - MAX_FILES_LISTED} more" if len(names) > MAX_FILES_LISTED else ""
    return ", ".join(names[:MAX_FILES_LISTED]) + more or "no file that could be one"

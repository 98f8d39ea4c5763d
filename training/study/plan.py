"""The cells of a study: each is one network or classifier on one split, named as in the paper's two tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal, get_args

import numpy as np

from hyperscene.errors import WrongUsage
from hyperscene.model.architecture import ModelConfig
from hyperscene.model.attention import VARIANTS
from hyperscene.training.baselines import BASELINES
from hyperscene.training.fit.recipes import RECIPES, separation_px

Part = Literal["inspection", "variants", "baselines", "ablations", "ingredients"]
PARTS: tuple[Part, ...] = get_args(Part)

DEFAULT_VARIANT = ModelConfig(1, 1).attention
DEFAULT_RECIPE = "strong"  # of `hyperscene train`


@dataclass(frozen=True)
class Amount:
    """How many labels to train on: a share of each class, a total number of pixels, or a number per class."""

    fraction: float | None = None
    train_pixels: int | None = None
    per_class: int | None = None

    @property
    def id(self) -> str:
        if self.train_pixels is not None:
            return f"n{self.train_pixels}"
        if self.per_class is not None:
            return f"c{self.per_class}"
        return f"f{np.format_float_positional(self.fraction or 0.0, trim='-')}"

    @property
    def label(self) -> str:
        """The amount as the report prints it."""
        if self.train_pixels is not None:
            return f"{self.train_pixels:,} label{'s' * (self.train_pixels != 1)}"
        if self.per_class is not None:
            return f"{self.per_class} label{'s' * (self.per_class != 1)} a class"
        return f"{100 * (self.fraction or 0):g} %"

    def record(self) -> dict[str, float | int]:
        """The amount as stored in a cell's file."""
        if self.train_pixels is not None:
            return {"train_pixels": self.train_pixels}
        if self.per_class is not None:
            return {"per_class": self.per_class}
        return {"fraction": self.fraction or 0.0}


@dataclass(frozen=True)
class Ablation:
    """A row of the paper's Table II: one change of the default network, or noise added to the scene."""

    group: str
    label: str
    change: Mapping[str, Any] = field(default_factory=dict)  # of ModelConfig
    noise_db: float | None = None


# All rows but that of the default network, which is the cosine squared of Table I and appears in every group.
ABLATIONS: dict[str, Ablation] = {
    "normalise_none": Ablation("Normalization", "None", {"normalise": "none"}),
    "normalise_query": Ablation("Normalization", "Query only", {"normalise": "query"}),
    "normalise_key": Ablation("Normalization", "Key only", {"normalise": "key"}),
    "squaring_cosine": Ablation("Squaring strategy", "Cosine", {"squaring": "cosine"}),
    "squaring_absolute": Ablation("Squaring strategy", "|cosine|", {"squaring": "absolute"}),
    "squaring_temperature": Ablation("Squaring strategy", "Temp.-scaled cosine²", {"squaring": "temperature_squared"}),
    "positions_none": Ablation("Positional encoding", "None", {"positions": "none"}),
    "positions_sinusoidal": Ablation("Positional encoding", "Sinusoidal", {"positions": "sinusoidal"}),
    "heads_2": Ablation("Head number", "2 heads", {"heads": 2}),
    "heads_8": Ablation("Head number", "8 heads", {"heads": 8}),
    "depth_2": Ablation("Encoder depth", "2 layers", {"depth": 2}),
    "depth_6": Ablation("Encoder depth", "6 layers", {"depth": 6}),
    "width_32": Ablation("Embedding dimension", "32", {"width": 32}),
    "width_128": Ablation("Embedding dimension", "128", {"width": 128}),
    "patch_8": Ablation("Patch size", "8 x 8", {"patch_px": 8}),
    "patch_24": Ablation("Patch size", "24 x 24", {"patch_px": 24}),
    "noise_30": Ablation("Spectral noise", "30 dB", noise_db=30.0),
    "noise_20": Ablation("Spectral noise", "20 dB", noise_db=20.0),
    "noise_10": Ablation("Spectral noise", "10 dB", noise_db=10.0),
}


# The default network's row in each group of Table II: its label and its index.
DEFAULT_ROWS = {
    "Normalization": ("Query + Key", 3),
    "Squaring strategy": ("Cosine²", 2),
    "Positional encoding": ("Learnable", 2),
    "Head number": ("4 heads", 1),
    "Encoder depth": ("4 layers", 1),
    "Embedding dimension": ("64", 1),
    "Patch size": ("16 x 16", 1),
    "Spectral noise": ("none added", 0),
}


@dataclass(frozen=True)
class Ingredient:
    """One change of the default recipe. Cells of ingredients that were deleted are still reported."""

    group: str
    label: str
    change: Mapping[str, Any] = field(default_factory=dict)  # of Recipe


INGREDIENTS: dict[str, Ingredient] = {
    "no_pseudo_labels": Ingredient(
        "Taken out", "pseudo-labels: labelled patches only, each once per epoch", {"pseudo_labels": False}
    ),
    "no_spectral_path": Ingredient("Taken out", "spectral path", {"spectral_path": False}),
    "pooled_head": Ingredient("Taken out", "token head: one result per patch", {"head": "pooled"}),
    "no_symmetries": Ingredient("Taken out", "rotations and flips", {"symmetries": False}),
    "all_tokens": Ingredient("Taken out", "choice of tokens: all at each step", {"token_share": 1.0}),
    "constant_rate": Ingredient("Taken out", "one cycle: constant rate", {"one_cycle": False}),
    "dropout": Ingredient("Put in", "dropout of 0.1", {"dropout": 0.1}),
    "twice_as_long": Ingredient("Put in", "twice as many epochs", {"epochs": 2 * RECIPES["strong"].epochs}),
}


@dataclass(frozen=True)
class Cell:
    """One classifier or network, fitted to one split and scored."""

    part: Part
    name: str
    recipe: str | None  # None: a baseline
    amount: Amount
    seed: int

    @property
    def id(self) -> str:
        return f"{self.part}-{self.name}-{self.recipe or 'none'}-{self.amount.id}-s{self.seed}"

    @property
    def label(self) -> str:
        """The cell's name as the report prints it."""
        if self.part == "baselines":
            return BASELINES[self.name]
        if self.part in CHANGES:
            return CHANGES[self.part][self.name].label
        return self.name.replace("_", " ")

    @property
    def group(self) -> str | None:
        """The heading above an ablation or an ingredient."""
        return CHANGES[self.part][self.name].group if self.part in CHANGES else None

    @property
    def change(self) -> dict[str, Any]:
        """Changes of the default network's configuration."""
        if self.part == "ablations":
            return dict(ABLATIONS[self.name].change)
        return {"attention": self.name} if self.part == "variants" else {}

    @property
    def recipe_change(self) -> dict[str, Any]:
        """Changes of the recipe."""
        return dict(INGREDIENTS[self.name].change) if self.part == "ingredients" else {}

    @property
    def noise_db(self) -> float | None:
        return ABLATIONS[self.name].noise_db if self.part == "ablations" else None


# Parts whose cells differ from the default network or recipe by one thing.
CHANGES: dict[str, Mapping[str, Ablation] | Mapping[str, Ingredient]] = {
    "ablations": ABLATIONS,
    "ingredients": INGREDIENTS,
}


# All cells of a study share a split; its training and test pixels are as far apart as the default network needs.
_DEFAULT = RECIPES[DEFAULT_RECIPE]
SEPARATION_PX = separation_px(ModelConfig(1, 1, head=_DEFAULT.head), _DEFAULT)


def crosses_separation(name: str) -> bool:
    """Whether patches of an ablation or ingredient reach from training to test pixels in a spatial split."""
    recipe = replace(_DEFAULT, **INGREDIENTS[name].change) if name in INGREDIENTS else _DEFAULT
    change = ABLATIONS[name].change if name in ABLATIONS else {}
    return separation_px(ModelConfig(1, 1, head=recipe.head, **change), recipe) > SEPARATION_PX


@dataclass(frozen=True)
class CellSelection:
    """Which cells to run."""

    seeds: int = 5
    variants: tuple[str, ...] = tuple(VARIANTS)
    ablations: tuple[str, ...] = tuple(ABLATIONS)
    baselines: tuple[str, ...] = tuple(BASELINES)
    recipes: tuple[str, ...] = ("paper", "strong")
    amounts: tuple[Amount, ...] = (Amount(fraction=0.01),)
    ingredients: tuple[str, ...] = ()


def plan_cells(selection: CellSelection) -> list[Cell]:
    """The cells in the order in which they are run.

    Each part runs seed by seed, so that a study that is stopped early has complete tables over fewer seeds. Networks
    come before baselines, which take seconds and would make the progress bar too optimistic.
    """
    seeds, first = range(selection.seeds), selection.amounts[:1]
    # The ablations are compared with the default network.
    reference = (DEFAULT_VARIANT,) if selection.ablations else ()
    inspected_recipe = DEFAULT_RECIPE if DEFAULT_RECIPE in selection.recipes else selection.recipes[0]
    is_inspected = DEFAULT_VARIANT in selection.variants
    cells = [
        *_cells("inspection", range(1), first, (inspected_recipe,), (DEFAULT_VARIANT,) if is_inspected else ()),
        *_cells("variants", seeds, selection.amounts, selection.recipes, selection.variants),
        *_cells("baselines", seeds, selection.amounts, (None,), selection.baselines),
        *_cells("variants", seeds, first, selection.recipes[:1], reference),
        *_cells("ablations", seeds, first, selection.recipes[:1], selection.ablations),
    ]
    if selection.ingredients:  # like Table II, but of the recipe, and with every amount
        default = (DEFAULT_RECIPE,)
        cells += _cells("variants", seeds, selection.amounts, default, (DEFAULT_VARIANT,))
        cells += _cells("ingredients", seeds, selection.amounts, default, selection.ingredients)
    return list(dict.fromkeys(cells))


def _cells(
    part: Part,
    seeds: Iterable[int],
    amounts: Iterable[Amount],
    recipes: Iterable[str | None],
    names: Iterable[str],
) -> list[Cell]:
    everything = product(seeds, amounts, recipes, names)
    return [Cell(part, name, recipe, amount, seed) for seed, amount, recipe, name in everything]


def choose(option: str, value: str, known: Iterable[str], may_be_none: bool = True) -> tuple[str, ...]:
    """Expand `all`, `none` or `name,name` to names, in the order of `known`."""
    known = tuple(known)
    if value == "all":
        return known
    if value == "none" and may_be_none:
        return ()
    names = [name.strip() for name in value.split(",")]
    for name in names:
        if name not in known:
            others = "all, none" if may_be_none else "all"
            raise WrongUsage(f"{option} does not accept {name!r}: use {others}, or some of {', '.join(known)}")
    return tuple(name for name in known if name in names)


def choose_recipes(value: str) -> tuple[str, ...]:
    """The recipes in the order of the option; ablations use the first."""
    chosen = choose("--recipes", value, RECIPES, may_be_none=False)
    return chosen if value == "all" else tuple(dict.fromkeys(name.strip() for name in value.split(",")))

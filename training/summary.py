"""What came of a study so far: means over seeds, and the paper's figures beside ours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from model.attention import VARIANTS
from service.errors import OptionsUnusable
from training.folder import read_study
from training.plan import ABLATIONS, BASELINES, INGREDIENTS, PARTS, Amount
from training.published import FRACTION, PUBLISHED, Scored, comparison_markdown
from training.statistics import summarise

OTHER_SPLIT = "The paper drew its pixels at random; this study's split is spatial, which is harder."
NOT_RUN_YET = f"No score function has been run with {100 * FRACTION:g} % of the labels yet."


def read_cells(directory: Path) -> list[dict[str, Any]]:
    """The finished cells of a study."""
    cells = []
    for path in sorted((directory / "cells").glob("*.json")):
        try:
            cells.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise OptionsUnusable(
                f"{path} cannot be read ({error}): delete it, and the same command goes on"
            ) from error
    return cells


def summarise_study(directory: Path) -> list[dict[str, Any]]:
    """One row for all seeds of a cell: mean and standard deviation of its scores, and of its map's."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for cell in read_cells(directory):
        groups.setdefault(_place(cell), []).append(cell)
    rows = []
    for _, cells in sorted(groups.items()):
        maps = [cell["mapped"]["scores"] for cell in cells if cell["mapped"]]
        row = {name: cells[0][name] for name in ("part", "name", "label", "group", "recipe", "amount")}
        row |= {
            "seeds": sorted(cell["seed"] for cell in cells),
            "scores": _spread([cell["scores"] for cell in cells]),
            "mapped": _spread(maps) if maps else None,
        }
        rows.append(row)
    return rows


def _place(cell: dict[str, Any]) -> tuple[Any, ...]:
    """What the seeds of a row have in common, in the order of the tables."""
    names = [*VARIANTS, *BASELINES, *ABLATIONS, *INGREDIENTS]
    amount = Amount(**cell["amount"])
    labels = (amount.fraction or 0.0, amount.per_class or 0, amount.train_pixels or 0)
    return PARTS.index(cell["part"]), labels, cell["recipe"] or "", names.index(cell["name"])


def _spread(scores: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    found = {}
    for metric in ("oa", "aa", "kappa"):
        mean, deviation = summarise([each[metric] for each in scores])
        found[metric] = {"mean": round(mean, 6), "sd": round(deviation, 6)}
    return found


def by_the_protocol(cells: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[Scored]]]:
    """What can be held against the paper's Table I: scores with its share of labels, by recipe and score function."""
    results: dict[str, dict[str, list[Scored]]] = {}
    for cell in cells:
        if cell["part"] == "variants" and cell["amount"] == {"fraction": FRACTION}:
            scores = cell["scores"]
            of_recipe = results.setdefault(cell["recipe"], {})
            of_recipe.setdefault(cell["name"], []).append((scores["oa"], scores["aa"], scores["kappa"]))
    return results


def compare_published(directory: Path) -> str | None:
    """Table I beside ours in Markdown, a part for each recipe; None where the scene is none of the paper's."""
    study = read_study(directory)
    if not study.get("published"):
        return None
    published = PUBLISHED[study["published"]]
    results = by_the_protocol(read_cells(directory))
    parts = [f"# {published.title}: ours beside the paper's Table I, in percent\n"]
    if study["split"] != "random":
        parts.append(f"{OTHER_SPLIT}\n")
    if not results:
        parts.append(f"{NOT_RUN_YET}\n")
    parts += [f"## Recipe {name}\n\n{comparison_markdown(published, found)}" for name, found in results.items()]
    return "\n".join(parts)

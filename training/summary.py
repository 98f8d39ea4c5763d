"""What came of a study so far: its finished cells, and their means over seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from model.attention import VARIANTS
from service.errors import OptionsUnusable
from training.plan import ABLATIONS, BASELINES, INGREDIENTS, PARTS, Amount
from training.statistics import METRICS, summarise

# What every cell says, whatever it is of.
NEEDED = ("part", "name", "label", "group", "recipe", "amount", "seed", "split", "scores", "mapped")


def read_cells(directory: Path) -> list[dict[str, Any]]:
    """The finished cells of a study."""
    cells = []
    for path in sorted((directory / "cells").glob("*.json")):
        try:
            cell = json.loads(path.read_text(encoding="utf-8"))
            missing = [key for key in NEEDED if key not in cell]
            if missing:
                raise ValueError(f"it has no {', '.join(missing)}")
        except (OSError, ValueError, TypeError) as error:
            raise OptionsUnusable(
                f"{path} cannot be read ({error}): delete it, and the same command goes on"
            ) from error
        cells.append(cell)
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
    amount = Amount(**cell["amount"])
    labels = (amount.fraction or 0.0, amount.per_class or 0, amount.train_pixels or 0)
    names = (*VARIANTS, *BASELINES, *ABLATIONS, *INGREDIENTS)
    return standing(cell["part"], PARTS), labels, cell["recipe"] or "", standing(cell["name"], names)


def standing(name: str, order: Iterable[str]) -> tuple[int, str]:
    """Where a name stands in an order; what another version of the program called something comes last."""
    known = list(order)
    return (known.index(name) if name in known else len(known), name)


def _spread(scores: list[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Means and deviations by metric; one seed has no deviation."""
    found: dict[str, dict[str, float | None]] = {}
    for metric in METRICS:
        mean, deviation = summarise([each[metric] for each in scores])
        found[metric] = {"mean": round(mean, 6), "sd": round(deviation, 6) if len(scores) > 1 else None}
    return found

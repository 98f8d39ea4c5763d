"""The sections of a report about the default network: classes, map, features, attention, speed, calibration."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from hyperscene.training.fit.calibration import calibration_error
from hyperscene.training.study import figures
from hyperscene.training.study.folder import decode_arrays
from hyperscene.training.study.pages import Block, Entry, FigureBlock, Paragraph, Row, Table
from hyperscene.training.study.plan import DEFAULT_VARIANT, Amount
from hyperscene.training.study.results import Record, Study, best, class_shares, confusion_of
from hyperscene.training.study.statistics import summarise
from hyperscene.training.study.text import labels_of, share

MAP_LAYERS = ("rgb", "truth", "split", "classes", "confidence")
MAX_ATTENTION_ROWS = 6

Arrays = dict[str, NDArray[np.generic]]


def _shown_amount(study: Study) -> Amount | None:
    """The amount of the class figures: that of the inspected network, or the smallest."""
    inspections = study.cells_of("inspection")
    if inspections:
        return Amount(**inspections[0]["amount"])
    return study.amounts[0] if study.amounts else None


def classes(study: Study, prefix: str) -> Iterator[Block]:
    """The accuracy of each class, and the confusion matrix."""
    amount = _shown_amount(study)
    if amount is None:
        return
    ours, strongest = study.ours(amount), best(study.baselines(amount))
    names, pixels = study.scene["class_names"], study.scene["class_pixels"]
    shares = {method.label: class_shares(method) for method in (*ours, strongest) if method is not None}
    if shares:
        beside = f", and the best baseline, {strongest.label}" if strongest else ""
        yield FigureBlock(f"{prefix}classes", figures.class_accuracies(names, pixels, shares), (
            f"Accuracy of every class, {labels_of(study, amount)}: ours by recipe{beside}; mean and standard deviation "
            "over seeds, with the number of labelled pixels in brackets."
        ))  # fmt: skip
    recipe = study.recipes[-1] if study.recipes else None
    cells = [cell for cell in study.cells_of("variants", amount, recipe) if cell["name"] == DEFAULT_VARIANT]
    if cells and all("confusion" in cell for cell in cells):
        matrix = confusion_of(cells)
        together = f"{len(cells)} seeds together" if len(cells) > 1 else "one seed"
        yield FigureBlock(f"{prefix}confusion", figures.confusion_matrix(names, matrix), (
            f"Confusion of ours ({recipe}), {labels_of(study, amount)}, {together}: "
            f"rows are true classes, in percent of the class. {_worst_confusion(names, matrix)}"
        ))  # fmt: skip


def _worst_confusion(names: Sequence[str], matrix: NDArray[np.int64]) -> str:
    wrong = matrix - np.diag(np.diag(matrix))
    if not wrong.any():
        return "No test pixel is wrong."
    row, col = divmod(int(wrong.argmax()), len(names))
    part = 100 * wrong[row, col] / wrong.sum()
    return f"The most frequent error is {names[row]} mapped as {names[col]}: {part:.0f} % of all errors."


def _inspections(study: Study) -> Iterator[tuple[Record, str]]:
    """The cells of inspected networks, and a name for their figures."""
    for cell in study.cells_of("inspection"):
        yield cell, f"{cell['recipe']}-{Amount(**cell['amount']).id}-s{cell['seed']}"


def _run_label(study: Study, cell: Record) -> str:
    return f"recipe {cell['recipe']}, {labels_of(study, Amount(**cell['amount']))}, seed {cell['seed']}"


def maps(study: Study, prefix: str) -> Iterator[Block]:
    """The class map with truth and split."""
    names, colors = study.scene["class_names"], study.scene["class_colors"]
    for cell, name in _inspections(study):
        arrays = decode_arrays(cell)
        if arrays.keys() >= set(MAP_LAYERS):
            layers = figures.MapLayers(*(arrays[layer] for layer in MAP_LAYERS))
            yield FigureBlock(f"{prefix}map-{name}", figures.class_maps(layers, names, colors), (
                f"The map that the service delivers with the truth and the split; {_run_label(study, cell)}. A good "
                "confidence is dark where the errors are. Numbers are those of the classes below."
            ), in_markdown=not prefix)  # fmt: skip


def inside(study: Study, prefix: str) -> Iterator[Block]:
    """Features in two dimensions, and attention within patches."""
    names, colors = study.scene["class_names"], study.scene["class_colors"]
    for cell, name in _inspections(study):
        arrays = decode_arrays(cell)
        if arrays.keys() >= {"embedding", "feature_classes"}:
            figure = figures.embedding(arrays["embedding"], arrays["feature_classes"], names, colors)
            yield FigureBlock(f"{prefix}features-{name}", figure, (
                f"Features of {len(arrays['embedding']):,} test pixels in two dimensions (t-SNE); "
                f"{_run_label(study, cell)}. Colours and shapes are true classes. Classes that share a cloud are "
                "hardly separated by the features; distances between clouds mean nothing."
            ))  # fmt: skip
        if arrays.keys() >= {"attention", "attention_patches", "attention_pixels"} and len(arrays["attention"]):
            most = slice(MAX_ATTENTION_ROWS)
            titles = _pixel_titles(arrays, names)[most]
            figure = figures.attention_maps(arrays["attention_patches"][most], arrays["attention"][most], titles)
            yield FigureBlock(f"{prefix}attention-{name}", figure, (
                f"Attention of the centre pixel (framed) within its patch; {_run_label(study, cell)}. Bright is more "
                "than uniform attention."
            ))  # fmt: skip


def _pixel_titles(arrays: Arrays, names: Sequence[str]) -> list[str]:
    titles = []
    for row, col in arrays["attention_pixels"].astype(int).tolist():
        value = int(arrays["truth"].astype(int)[row, col]) if "truth" in arrays else 0
        position = f"row {row}, col {col}"
        titles.append(f"{names[value - 1]}\n{position}" if value else position)
    return titles


def speed(study: Study, prefix: str) -> Iterator[Block]:
    """Accuracy and time of the map by stride and blend."""
    for cell, _ in _inspections(study):
        tried = sorted(cell.get("speed") or [], key=lambda one: (one["stride"], one["blend"]))
        if len(tried) < 2:
            continue
        rows = [
            Row(
                f"stride {one['stride']}, blend {one['blend']}",
                [Entry(f"{100 * one['oa']:.2f}"), Entry(f"{one['seconds']:.3g}"), Entry(f"{one['patches']:,}")],
            )
            for one in tried
        ]
        yield Table(f"Strides and blends, {_run_label(study, cell)}", ["map", "OA, %", "seconds", "patches"], rows)


def calibration(study: Study, prefix: str) -> Iterator[Block]:
    """The calibration error before and after temperature scaling."""
    rows = list(_calibration_rows(study))
    has_maps = any("map" in row for _, row in rows)
    columns = ["before", "after", *(["map"] if has_maps else []), "temperature", "networks"]
    of_maps = "; 'map' is that of the delivered map, if all networks of a row have it" if has_maps else ""
    among = " In a spatial split validation pixels lie among the test pixels." if study.split == "spatial" else ""
    if rows:
        yield Table(
            "Expected calibration error (ECE), in percent",
            ["recipe and labels", *columns],
            [Row(name, [Entry(row.get(column, "")) for column in columns]) for name, row in rows],
            "Mean distance between confidence and accuracy on test pixels (at most 2,000 if a network is scored by its "
            "map), each with its own patch, before and after temperature scaling on the validation pixels"
            f"{of_maps}. Means over seeds of the default network.{among}",
        )
        yield Paragraph(_temperature_verdict([float(row["after"]) < float(row["before"]) for _, row in rows]), True)
    for cell, name in _inspections(study):
        yield from _reliability_figure(study, cell, f"{prefix}reliability-{name}")


def _calibration_rows(study: Study) -> Iterator[tuple[str, dict[str, str]]]:
    """The default network's entries by column, for each amount and recipe; `map` only where all networks have it."""
    for amount, recipe in product(study.amounts, study.recipes):
        cells = [cell for cell in study.cells_of("variants", amount, recipe) if cell["name"] == DEFAULT_VARIANT]
        known = [found for cell in cells if (found := cell.get("calibration"))]
        if not known:
            continue
        factors = {"before": ("ece_before", 100), "after": ("ece_after", 100), "temperature": ("temperature", 1)}
        if all("ece_map" in found for found in known):
            factors["map"] = "ece_map", 100
        means = {column: factor * np.mean([found[key] for found in known]) for column, (key, factor) in factors.items()}
        entries = {column: f"{mean:.2f}" for column, mean in means.items()}
        yield f"{recipe}, {labels_of(study, amount)}", entries | {"networks": str(len(known))}


def _reliability_figure(study: Study, cell: Record, name: str) -> Iterator[Block]:
    """The accuracy by confidence of an inspected network; without a temperature there is only one curve."""
    curves, is_scaled = cell.get("reliability") or {}, bool(cell.get("calibration"))
    labels = {"before": "before", "after": "after"} if is_scaled else {"before": "unscaled"}
    drawn = {label: (curves[key], calibration_error(curves[key])) for key, label in labels.items() if curves.get(key)}
    if drawn:
        scaled = ", before and after temperature scaling" if is_scaled else ""
        yield FigureBlock(name, figures.reliability(drawn), (
            f"Accuracy by confidence{scaled}; {_run_label(study, cell)}. Left: above the dotted line the network "
            f"is underconfident, below it overconfident; hollow marks are fewer than {figures.MIN_PREDICTIONS} "
            "pixels. Right: distribution of the test pixels over confidence."
        ))  # fmt: skip


def _temperature_verdict(helped: Sequence[bool]) -> str:
    """In how many rows temperature scaling lowers the error."""
    if all(helped):
        return "Temperature scaling lowers the calibration error in every row."
    some = "no row" if not any(helped) else f"{sum(helped)} of {len(helped)} rows only"
    return (
        f"Temperature scaling lowers the calibration error in {some}. In the others the validation pixels are "
        "probably too few, or too different from the test pixels."
    )


# What PropagationSettings.record() in training/fit/propagation_settings.py writes, and the column it is shown as.
SETTING_COLUMNS = {
    "held_out_accuracy": ("held-out accuracy, %", 100, 1),
    "held_out_accuracy_of_spectra_alone": ("by spectra alone, %", 100, 1),
    "held_out_distance_px": ("held-out pixels from the labels, px", 1, 0),
    "target_distance_px": ("test pixels from the labels, px", 1, 0),
}


def recipe_choices(study: Study, prefix: str) -> Iterator[Block]:
    """The settings that a recipe chose, by amount of labels."""
    for recipe in study.recipes:
        cells = [cell for cell in study.cells_of("variants", recipe=recipe) if cell["name"] == DEFAULT_VARIANT]
        chosen = [cell for cell in cells if cell.get("chosen")]
        if chosen:
            yield _propagation_table(study, recipe, chosen)


def _propagation_table(study: Study, recipe: str, cells: Sequence[Record]) -> Table:
    rows = []
    for amount in study.amounts:
        of_amount = [cell for cell in cells if Amount(**cell["amount"]) == amount]
        if not of_amount:
            continue
        weights = [cell["chosen"]["fidelity_weight"] for cell in of_amount]
        smoothed = sum(bool(cell["chosen"].get("smoothed")) for cell in of_amount)
        entries = [Entry(_counted(weights, "weight ") + (f"; smoothed spectra too ({smoothed})" if smoothed else ""))]
        for key, (_, factor, digits) in SETTING_COLUMNS.items():
            values = [factor * cell["chosen"][key] for cell in of_amount if key in cell["chosen"]]
            entries.append(Entry(_mean(values, digits)))
        entries.append(Entry(_mean([100 * cell["scores"]["oa"] for cell in of_amount], 1)))
        rows.append(Row(labels_of(study, amount), entries))
    return Table(
        f"Settings that recipe {recipe} chose",
        [
            "to train on",
            "fidelity weight (seeds)",
            *(title for title, _, _ in SETTING_COLUMNS.values()),
            "test accuracy, %",
        ],
        rows,
        "Label propagation combines each pixel's spectrum with similar neighbours. The fidelity weight of the pixel's "
        "own spectrum is chosen on held-out training pixels: a smaller weight trusts neighbours more, 'spectra alone' "
        "ignores them; with few labels a class, smoothed spectra are tried too. Held-out pixels should be as far from "
        "the labels as the test pixels are; clustered labels do not allow that. The last column is the network's "
        "accuracy. Mean ± standard deviation over seeds.",
    )


def _counted(values: Sequence[object], before_number: str = "") -> str:
    """Each value with the number of seeds that chose it; texts first, then the largest."""
    counts = Counter(values)

    def sort_key(value: object) -> tuple[float, str]:
        return (-float(value), "") if isinstance(value, int | float) else (-math.inf, str(value))

    named = {value: str(value) if isinstance(value, str) else f"{before_number}{_value(value)}" for value in counts}
    return ", ".join(f"{named[value]} ({counts[value]})" for value in sorted(counts, key=sort_key))


def _mean(values: Sequence[float], digits: int) -> str:
    if not values:
        return ""
    mean, deviation = summarise(values)
    return share(mean, deviation if len(values) > 1 else None, digits)


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

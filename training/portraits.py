"""The chapters of a report about one network on one scene: classes, map, features, attention, speed, calibration."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from service.errors import OptionsUnusable
from training import figures
from training.findings import Record, Study, best, class_shares, confusion_of
from training.pages import Block, Entry, Paragraph, Picture, Row, Table
from training.plan import DEFAULT_VARIANT, Amount
from training.statistics import calibration_error, summarise
from training.wording import labels_of, share

MAP_LAYERS = ("rgb", "truth", "split", "classes", "confidence")
MOST_ATTENTION_ROWS = 6

Arrays = dict[str, NDArray[np.generic]]


def _shown_amount(study: Study) -> Amount | None:
    """The amount that pictures of classes are about: the portrait's, or the smallest."""
    portraits = study.cells_of("portrait")
    if portraits:
        return Amount(**portraits[0]["amount"])
    return study.amounts[0] if study.amounts else None


def classes(study: Study, prefix: str) -> Iterator[Block]:
    """Every class's accuracy, and what it is taken for."""
    amount = _shown_amount(study)
    if amount is None:
        return
    ours, strongest = study.ours(amount), best(study.baselines(amount))
    names, pixels = study.scene["class_names"], study.scene["class_pixels"]
    shares = {method.label: class_shares(method) for method in (*ours, strongest) if method is not None}
    if shares:
        beside = f", and the best baseline, {strongest.label}" if strongest else ""
        yield Picture(f"{prefix}classes", figures.class_accuracies(names, pixels, shares), (
            f"Accuracy of every class, {labels_of(study, amount)}: ours by recipe{beside}; mean and standard deviation "
            "over seeds, with the class's labelled pixels in brackets. Look first at the classes with few pixels: the "
            "overall accuracy hardly feels them."
        ))  # fmt: skip
    recipe = study.recipes[-1] if study.recipes else None
    cells = [cell for cell in study.cells_of("variants", amount, recipe) if cell["name"] == DEFAULT_VARIANT]
    if cells and all("confusion" in cell for cell in cells):
        matrix = confusion_of(cells)
        together = f"{len(cells)} seeds together" if len(cells) > 1 else "one seed"
        yield Picture(f"{prefix}confusion", figures.confusion_matrix(names, matrix), (
            f"Confusion of ours ({recipe}), {labels_of(study, amount)}, {together}: where "
            f"the pixels of each true class (row) went, in percent of the class. {_worst_confusion(names, matrix)}"
        ))  # fmt: skip


def _worst_confusion(names: Sequence[str], matrix: NDArray[np.int64]) -> str:
    wrong = matrix - np.diag(np.diag(matrix))
    if not wrong.any():
        return "No pixel was taken for another class."
    row, col = divmod(int(wrong.argmax()), len(names))
    part = 100 * wrong[row, col] / wrong.sum()
    return f"The commonest error is {names[row]} taken for {names[col]}: {part:.0f} % of all errors."


def _portraits(study: Study) -> Iterator[tuple[Record, str]]:
    """Cells with pictures, and what tells them apart in a file's name."""
    for cell in study.cells_of("portrait"):
        yield cell, f"{cell['recipe']}-{Amount(**cell['amount']).id}-s{cell['seed']}"


def _arrays(study: Study, cell: Record) -> Arrays:
    """The arrays beside a cell's file; none where they are not there."""
    path = study.directory / "cells" / f"{cell['id']}.npz"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, BadZipFile) as error:
        raise OptionsUnusable(
            f"{path} cannot be read ({error}): delete it and the .json beside it, and the same command goes on"
        ) from error


def _portrayed(study: Study, cell: Record) -> str:
    return f"recipe {cell['recipe']}, {labels_of(study, Amount(**cell['amount']))}, seed {cell['seed']}"


def maps(study: Study, prefix: str) -> Iterator[Block]:
    """The class map beside truth and split."""
    names, colors = study.scene["class_names"], study.scene["class_colors"]
    for cell, name in _portraits(study):
        arrays = _arrays(study, cell)
        if arrays.keys() >= set(MAP_LAYERS):
            layers = figures.MapArrays(*(arrays[layer] for layer in MAP_LAYERS))
            yield Picture(f"{prefix}map-{name}", figures.class_maps(layers, names, colors), (
                f"The map that the service delivers beside the truth and the split; {_portrayed(study, cell)}. Compare "
                "the borders of fields with the truth, and the errors with the confidence: a map that knows its limits "
                "is dark where it is wrong. Numbers are those of the classes below."
            ))  # fmt: skip


def inside(study: Study, prefix: str) -> Iterator[Block]:
    """Features in two dimensions, and attention within patches."""
    names, colors = study.scene["class_names"], study.scene["class_colors"]
    for cell, name in _portraits(study):
        arrays = _arrays(study, cell)
        if arrays.keys() >= {"embedding", "feature_classes"}:
            figure = figures.embedding(arrays["embedding"], arrays["feature_classes"], names, colors)
            yield Picture(f"{prefix}features-{name}", figure, (
                f"Features of {len(arrays['embedding']):,} test pixels in two dimensions (t-SNE); "
                f"{_portrayed(study, cell)}. Colours and shapes are true classes. Where two classes share a cloud, the "
                "features hardly tell them apart; distances between clouds mean nothing."
            ))  # fmt: skip
        if arrays.keys() >= {"attention", "attention_patches", "attention_pixels"} and len(arrays["attention"]):
            most = slice(MOST_ATTENTION_ROWS)
            titles = _pixel_titles(arrays, names)[most]
            figure = figures.attention_maps(arrays["attention_patches"][most], arrays["attention"][most], titles)
            yield Picture(f"{prefix}attention-{name}", figure, (
                f"What the centre pixel (framed) attends to within its patch; {_portrayed(study, cell)}. Bright is "
                "more than an even share. Attention that follows the borders in the patch's picture has learnt what "
                "belongs to the same field; attention that looks the same in every row has not."
            ))  # fmt: skip


def _pixel_titles(arrays: Arrays, names: Sequence[str]) -> list[str]:
    titles = []
    for row, col in arrays["attention_pixels"].astype(int).tolist():
        value = int(arrays["truth"].astype(int)[row, col]) if "truth" in arrays else 0
        place = f"row {row}, col {col}"
        titles.append(f"{names[value - 1]}\n{place}" if value else place)
    return titles


def speed(study: Study, prefix: str) -> Iterator[Block]:
    """What strides and blends cost and give."""
    for cell, name in _portraits(study):
        tried = sorted(cell.get("speed") or [], key=lambda one: (one["stride"], one["blend"]))
        if len(tried) < 2:
            continue
        blends: dict[str, list[tuple[int, float, float]]] = {}
        for one in tried:
            blends.setdefault(one["blend"], []).append((one["stride"], one["seconds"], 100 * one["oa"]))
        yield Picture(f"{prefix}speed-{name}", figures.accuracy_by_speed(blends), (
            f"Accuracy of the map against the time it takes, by stride and blend; {_portrayed(study, cell)}. Up and to "
            "the left is better. This is one seed: half a point between neighbours is no ranking."
        ))  # fmt: skip
        rows = [
            Row(
                f"stride {one['stride']}, blend {one['blend']}",
                [Entry(f"{100 * one['oa']:.2f}"), Entry(f"{one['seconds']:.3g}"), Entry(f"{one['patches']:,}")],
            )
            for one in tried
        ]
        yield Table(f"Strides and blends, {_portrayed(study, cell)}", ["map", "OA, %", "seconds", "patches"], rows)


def calibration(study: Study, prefix: str) -> Iterator[Block]:
    """Whether confidence means what it says, before and after temperature scaling."""
    rows: list[Row] = []
    helped: list[bool] = []
    has_maps = any("ece_map" in (cell.get("calibration") or {}) for cell in study.cells_of("variants"))
    for amount in study.amounts:
        for recipe in study.recipes:
            cells = [cell for cell in study.cells_of("variants", amount, recipe) if cell["name"] == DEFAULT_VARIANT]
            known = [found for cell in cells if (found := cell.get("calibration"))]
            if known:
                before, after, heat = (
                    float(np.mean([found[key] for found in known]))
                    for key in ("ece_before", "ece_after", "temperature")
                )
                helped.append(round(after, 4) < round(before, 4))
                of_map = [100 * found["ece_map"] for found in known if "ece_map" in found]
                texts = [f"{100 * before:.2f}", f"{100 * after:.2f}", f"{heat:.2f}", str(len(known))]
                if has_maps:
                    texts.insert(2, f"{np.mean(of_map):.2f}" if len(of_map) == len(known) else "")
                rows.append(Row(f"{recipe}, {labels_of(study, amount)}", [Entry(text) for text in texts]))
    of_maps = "; 'map' is the same of the delivered map, where all networks of a row were asked" if has_maps else ""
    among = " Validation pixels of a spatial split lie among its test pixels." if study.split == "spatial" else ""
    if rows:
        yield Table(
            "Expected calibration error (ECE), in percent",
            ["recipe and labels", "before", "after", *(["map"] if has_maps else []), "temperature", "networks"],
            rows,
            "How far confidence and the share of right answers lie apart on test pixels (at most 2,000 of them where "
            "a network is judged by its map), each by a patch of its own, before and after the logits are divided by a "
            f"temperature that was fitted to the validation pixels{of_maps}. Means over seeds of the default "
            f"network.{among}",
        )
        yield Paragraph(_whether_it_helped(helped), is_finding=True)
    for cell, name in _portraits(study):
        curves = cell.get("reliability") or {}
        # Without a temperature nothing comes after.
        is_scaled = bool(cell.get("calibration"))
        names = {"before": "before", "after": "after"} if is_scaled else {"before": "as it is"}
        drawn = {said: (curves[key], calibration_error(curves[key])) for key, said in names.items() if curves.get(key)}
        if drawn:
            figure = figures.reliability(drawn)
            scaled = ", before and after temperature scaling" if is_scaled else ""
            yield Picture(f"{prefix}reliability-{name}", figure, (
                f"How often answers of a confidence are right{scaled}; {_portrayed(study, cell)}. Left, above the "
                "dotted line the network is too modest, below it too sure; hollow marks stand for fewer than "
                f"{figures.FEWEST_ANSWERS} pixels. Right: how the test pixels spread over confidences."
            ))  # fmt: skip


def _whether_it_helped(helped: Sequence[bool]) -> str:
    """In how many rows the temperature brought the error down."""
    if all(helped):
        return "The temperature brings confidence nearer to the truth in every row."
    some = "no row" if not any(helped) else f"only {sum(helped)} of {len(helped)} rows"
    return (
        f"The temperature brings confidence nearer to the truth in {some}. The validation pixels, which it is fitted "
        "to, are likely too few elsewhere, or too unlike the test pixels."
    )


# What a taught recipe writes down (Choice.record() in training/teacher.py), and as which column it is shown.
CHOICES = {
    "held_out_accuracy": ("held-out pixels right, %", 100, 1),
    "held_out_accuracy_of_spectra_alone": ("by spectra alone, %", 100, 1),
    "held_out_distance_px": ("held-out pixels from the labels, px", 1, 0),
    "asked_distance_px": ("test pixels from the labels, px", 1, 0),
}


def choices(study: Study, prefix: str) -> Iterator[Block]:
    """What a recipe picked by itself, by amount of labels; the score function has no part in it."""
    for recipe in study.recipes:
        cells = [cell for cell in study.cells_of("variants", recipe=recipe) if cell["name"] == DEFAULT_VARIANT]
        chosen = [cell for cell in cells if cell.get("chosen")]
        taught = [cell for cell in chosen if "pull" in cell["chosen"]]
        if taught:
            yield _taught_table(study, recipe, taught)
        rows = list(_other_choices(study, [cell for cell in chosen if cell not in taught]))
        if rows:
            yield Table(f"What recipe {recipe} chose by itself", ["to train on, and setting", "value (seeds)"], rows)


def _other_choices(study: Study, cells: Sequence[Record]) -> Iterator[Row]:
    """What recipes write down that we know no words for."""
    for amount in study.amounts:
        chosen = [cell["chosen"] for cell in cells if Amount(**cell["amount"]) == amount]
        for key in dict.fromkeys(key for found in chosen for key in found):
            values = [found[key] for found in chosen if key in found]
            yield Row(f"{labels_of(study, amount)}: {key.replace('_', ' ')}", [Entry(_counted(values))])


def _taught_table(study: Study, recipe: str, cells: Sequence[Record]) -> Table:
    rows = []
    for amount in study.amounts:
        of_amount = [cell for cell in cells if Amount(**cell["amount"]) == amount]
        if not of_amount:
            continue
        pulls = [cell["chosen"]["pull"] for cell in of_amount]
        smoothed = sum(bool(cell["chosen"].get("smoothed")) for cell in of_amount)
        entries = [Entry(_counted(pulls, "pull ") + (f"; smoothed spectra too ({smoothed})" if smoothed else ""))]
        for key, (_, factor, digits) in CHOICES.items():
            values = [factor * cell["chosen"][key] for cell in of_amount if key in cell["chosen"]]
            entries.append(Entry(_mean(values, digits)))
        entries.append(Entry(_mean([100 * cell["scores"]["oa"] for cell in of_amount], 1)))
        rows.append(Row(labels_of(study, amount), entries))
    return Table(
        f"What recipe {recipe} chose by itself",
        ["to train on", "choice (seeds)", *(title for title, _, _ in CHOICES.values()), "test pixels right, %"],
        rows,
        "The recipe's teacher answers for the whole scene, by spectra and by neighbours that look alike. How hard it "
        "pulls a pixel to its own spectrum's answer is chosen by training pixels that are held out: a smaller pull "
        "lets neighbours count for more, 'spectra alone' is where they did not help; with few labels a class, spectra "
        "that are averaged with neighbours' are tried too. Those pixels should lie as far "
        "from the labels as the test pixels do, which labels that lie close together do not allow. The last column is "
        "what came of it: how often the network was right. "
        "Mean ± standard deviation over seeds.",
    )


def _counted(values: Sequence[object], before_number: str = "") -> str:
    """Every value with the number of seeds that chose it; words first, then the largest."""
    counts = Counter(values)

    def place(value: object) -> tuple[float, str]:
        return (-float(value), "") if isinstance(value, int | float) else (-math.inf, str(value))

    named = {value: str(value) if isinstance(value, str) else f"{before_number}{_value(value)}" for value in counts}
    return ", ".join(f"{named[value]} ({counts[value]})" for value in sorted(counts, key=place))


def _mean(values: Sequence[float], digits: int) -> str:
    if not values:
        return ""
    mean, deviation = summarise(values)
    return share(mean, deviation if len(values) > 1 else None, digits)


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

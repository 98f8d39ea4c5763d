"""The chapters of a report that rank methods: ours beside the baselines, score functions, ablations, ingredients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from training import figures
from training.findings import (
    FEWEST_SEEDS,
    Comparison,
    Method,
    Study,
    best,
    compare_all,
    compare_headline,
    compare_with,
    complete,
    even,
    headline,
    seeds_of,
)
from training.pages import Block, Paragraph, Picture, Row, Table
from training.plan import DEFAULT_RECIPE, DEFAULT_ROWS, DEFAULT_VARIANT, SEPARATION_PX, Amount, reaches_over
from training.statistics import needed_spreads
from training.wording import (
    MARKS,
    NOISE,
    counted,
    difference,
    judged,
    labels_of,
    listed,
    mean_fit_seconds,
    over_seeds,
    points,
    score_rows,
    share,
)

MOST_NAMED = 5  # methods that a sentence lists before it counts them


# Ours beside the baselines


def beside_baselines(study: Study, prefix: str) -> Iterator[Block]:
    """A table for every amount of labels, and accuracy against their number."""
    for amount in study.amounts:
        if study.ours(amount) and study.baselines(amount):
            yield from _baseline_table(study, amount)
    lines = _lines_by_labels(study)
    if lines:
        yield Picture(f"{prefix}labels", figures.accuracy_by_labels(lines), (
            "Overall accuracy against the number of labelled pixels to train on; mean and standard deviation over "
            "seeds. A line that is higher on the left needs fewer labels for the same accuracy; baselines are dashed. "
            "Points of one amount are set side by side only so that their bars stay visible."
        ))  # fmt: skip


def _baseline_table(study: Study, amount: Amount) -> Iterator[Block]:
    ours, baselines = study.ours(amount), study.baselines(amount)
    methods = [*ours, *baselines]
    chosen, against = headline(ours), compare_headline(study, amount)
    assert chosen is not None
    leads = {found.second.label: difference(found) for found in against} | {chosen.label: "reference"}
    seconds = {method.label: "" if method.is_teacher else mean_fit_seconds(method) for method in methods}
    yield Table(
        f"Ours beside the baselines, {labels_of(study, amount)}",
        ["method", "OA", "AA", "kappa", f"lead in OA of {chosen.label}", "seconds to fit"],
        score_rows(methods, leads, baselines[0], seconds),
        f"{over_seeds(methods)} {MARKS} {NOISE}",
    )
    yield Paragraph(_against(chosen, [found for found in against if found.second.is_baseline]), is_finding=True)


def _against(chosen: Method, against: Sequence[Comparison]) -> str:
    """Which baselines ours beats, loses to, or cannot be told from."""
    kinds = {
        "is beyond noise above": [found for found in against if found.is_beyond_noise and found.difference > 0],
        "is beyond noise below": [found for found in against if found.is_beyond_noise and found.difference <= 0],
        "cannot be told apart from": [found for found in against if found.p is not None and not found.is_beyond_noise],
        "has too few seeds in common for a test with": [found for found in against if found.p is None],
    }
    said = [
        f"{kind} {listed([f'{found.second.label} ({points(found.difference)})' for found in of_kind])}"
        for kind, of_kind in kinds.items()
        if of_kind
    ]
    reached = f"{chosen.label[0].upper()}{chosen.label[1:]}: OA {share(*chosen.summary())}."
    return f"{reached} This {'; it '.join(said)}." if said else reached


def _lines_by_labels(study: Study) -> list[figures.Line]:
    """Every method that was tried with more than one amount of labels."""
    found: dict[tuple[bool, str], list[figures.Point]] = {}
    for amount in study.amounts:
        for method in (*study.ours(amount), *study.baselines(amount)):
            point = figures.Point(study.labels_of(amount), *method.summary())
            found.setdefault((method.is_baseline, method.label), []).append(point)
    lines = [figures.Line(label, row, is_baseline) for (is_baseline, label), row in found.items() if len(row) > 1]
    return sorted(lines, key=lambda line: line.is_baseline)


# Table I


def score_functions(study: Study, prefix: str) -> Iterator[Block]:
    """Table I for every amount and recipe, as numbers, as a picture, and as paired tests."""
    for amount in study.amounts:
        by_recipe = {recipe: even(study.variants(amount, recipe)) for recipe in study.recipes}
        by_recipe = {recipe: variants for recipe, variants in by_recipe.items() if len(variants) > 1}
        for recipe, variants in by_recipe.items():
            yield from _table_one(study, amount, recipe, variants, _baselines(study, amount, variants))
        if by_recipe:
            every = [method for variants in by_recipe.values() for method in variants]
            figure = _variants_figure(by_recipe, _baselines(study, amount, every))
            yield Picture(f"{prefix}variants-{amount.id}", figure, (
                f"Table I as a picture, {labels_of(study, amount)}: small marks are seeds, large ones their means. "
                "Where the small marks of two score functions lie among each other, the order of the large ones says "
                "little."
            ))  # fmt: skip
        for recipe, variants in by_recipe.items():
            if len(complete(variants)) > 2 and len(complete(variants)[0].seeds) >= FEWEST_SEEDS:
                yield Picture(f"{prefix}pairs-{recipe}-{amount.id}", _pairs_figure(variants), (
                    f"Every pair of score functions, recipe {recipe}, {labels_of(study, amount)}: by how many points "
                    "of OA the row is above the column, best mean on top. Shaded and bold: beyond noise in the paired "
                    "test. Everything else may be chance, however the means are ordered."
                ))  # fmt: skip


def _baselines(study: Study, amount: Amount, variants: Sequence[Method]) -> list[Method]:
    """Baselines over the seeds that any of the score functions has."""
    seeds = seeds_of(variants)
    return [cut for cut in (method.cut(seeds) for method in study.baselines(amount)) if cut.scores]


def _table_one(
    study: Study, amount: Amount, recipe: str, variants: Sequence[Method], baselines: Sequence[Method]
) -> Iterator[Block]:
    leader = best(variants)
    assert leader is not None
    compared = compare_all(variants)
    behind = {found.second.label: difference(found.turned) for found in compared if found.first is leader}
    behind |= {found.first.label: difference(found) for found in compared if found.second is leader}
    below = " Below the rule: baselines on the same pixels." if baselines else ""
    yield Table(
        f"Table I, recipe {recipe}, {labels_of(study, amount)}",
        ["score function", "OA", "AA", "kappa", "OA against the best score function"],
        score_rows([*variants, *baselines], behind | {leader.label: "best"}, baselines[0] if baselines else None),
        f"{over_seeds(variants)} {judged(variants)} {MARKS} {NOISE}{below}",
    )
    yield Paragraph(_verdict(leader, variants, compared), is_finding=True)


def _verdict(leader: Method, variants: Sequence[Method], compared: Sequence[Comparison]) -> str:
    """Which differences between score functions are more than noise, in words; those without all seeds wait."""
    methods = complete(variants)
    tested = [found for found in compared if found.p is not None and {found.first, found.second} <= set(methods)]
    highest = "the highest mean" if len(methods) == len(variants) else "the highest mean of those with all seeds"
    beyond = [found for found in tested if found.is_beyond_noise]
    name = f"{leader.label[0].upper()}{leader.label[1:]}"
    if not tested:
        few = counted(len(leader.seeds), "seed")
        return f"{name} has {highest}, but {few} cannot be told from noise: this is no ranking."
    if not beyond:
        seeds = len(leader.seeds)
        return (
            f"No two score functions differ beyond noise ({len(tested)} pairs, {counted(seeds, 'seed')}): "
            f"the order of this table, {leader.label} first, is no ranking. Nor does it say that they are alike: of so "
            f"many differences the first is found where its mean is {needed_spreads(len(tested), seeds):.1f} times its "
            "standard deviation over seeds."
        )
    beaten = [found.second.label for found in beyond if found.first is leader]
    alike = [method.label for method in methods if method is not leader and method.label not in beaten]
    some = (
        listed(alike) if 0 < len(alike) <= MOST_NAMED else f"the other {len(alike)}" if beaten else "any of the others"
    )
    told = [
        *([f"is beyond noise above {listed(beaten)}"] if beaten else []),
        *([f"cannot be told apart from {some}"] if alike else []),
    ]
    total = f"{len(beyond)} of the {len(tested)} pairs of score functions differ beyond noise"
    return f"{total}. {name} has {highest}: it {', but '.join(told)}."


def _variants_figure(by_recipe: Mapping[str, Sequence[Method]], baselines: Sequence[Method]) -> Figure:
    labels = list(dict.fromkeys(method.label for variants in by_recipe.values() for method in variants))
    series: dict[str, list[list[float]]] = {}
    for recipe, variants in by_recipe.items():
        values = {method.label: method.values() for method in variants}
        series[f"recipe {recipe}"] = [values.get(label, []) for label in labels] + [[]] * len(baselines)
    if baselines:
        series["baseline"] = [[]] * len(labels) + [method.values() for method in baselines]
    breaks = [len(labels)] if baselines else []
    return figures.spread([*labels, *(method.label for method in baselines)], series, breaks)


def _pairs_figure(variants: Sequence[Method]) -> Figure:
    rivals = sorted(complete(variants), key=lambda method: -method.mean)
    place = {method: number for number, method in enumerate(rivals)}
    lead = np.zeros((len(rivals), len(rivals)))
    is_beyond = np.zeros(lead.shape, bool)
    for found in compare_all(variants):
        if found.first in place and found.second in place:
            where = place[found.first], place[found.second]
            lead[where], is_beyond[where] = found.difference, found.is_beyond_noise
    return figures.difference_matrix([method.label for method in rivals], lead, is_beyond)


# Table II


def ablations(study: Study, prefix: str) -> Iterator[Block]:
    """Table II for every amount and recipe that it was made with."""
    for amount in study.amounts:
        for recipe in sorted({cell["recipe"] for cell in study.cells_of("ablations", amount)}):
            yield from _changes_table(study, "ablations", "Table II", amount, recipe, prefix)


def ingredients(study: Study, prefix: str) -> Iterator[Block]:
    """What each part of the default recipe is worth, and what others would be, for every amount."""
    for amount in study.amounts:
        if study.cells_of("ingredients", amount):
            yield from _changes_table(study, "ingredients", "Ingredients", amount, DEFAULT_RECIPE, prefix)


def _changes_table(study: Study, part: str, title: str, amount: Amount, recipe: str, prefix: str) -> Iterator[Block]:
    groups = study.changes(part, amount, recipe)
    changed = [method for methods in groups.values() for method in methods]
    defaults = [one for one in study.variants(amount, recipe) if one.cells[0]["name"] == DEFAULT_VARIANT]
    default = next((cut for cut in (one.cut(seeds_of(changed)) for one in defaults) if cut.scores), None)
    against = [found.turned for found in compare_with(default, changed)] if default else []
    rivals = [default, *changed] if default else changed
    by_group = {
        group: {found.first.label: found for found in against if found.first in methods}
        for group, methods in groups.items()
    }
    rows: list[Row] = []
    for group, methods in groups.items():
        label, place = DEFAULT_ROWS.get(group, ("default", 0))
        lines = list(methods)
        if default:
            lines.insert(place, Method(label, default.scores, default.cells))
            lines = even(lines)
        rows.append(Row(group))
        last = {name: difference(found) for name, found in by_group[group].items()}
        rows += score_rows(lines, last | {label: "default"})
    yield Table(
        f"{title}, recipe {recipe}, {labels_of(study, amount)}",
        ["configuration", "OA", "AA", "kappa", "OA against the default"],
        rows,
        f"One thing at a time differs from the default. {over_seeds(changed)} {judged(rivals)} Within each "
        f"group: {MARKS} {NOISE}{_flattered(study, changed)}",
    )
    if against:
        yield Paragraph(_changes(by_group, title), is_finding=True)
        yield Picture(f"{prefix}{part}-{recipe}-{amount.id}", _changes_figure(by_group), (
            f"{title} as differences from the default, recipe {recipe}, {labels_of(study, amount)}. Left of the line "
            "the change costs accuracy. A hollow mark may be chance; each tick is one seed."
        ))  # fmt: skip


def _flattered(study: Study, changed: Sequence[Method]) -> str:
    """Which rows see training pixels beside test pixels although the split is spatial."""
    names = [method.label for method in changed if reaches_over(method.cells[0]["name"])]
    if study.split == "random" or not names:
        return ""
    return (
        f" Training and test pixels lie {SEPARATION_PX} px apart, and patches of {listed(names)} reach further: "
        f"{'this row is' if len(names) == 1 else 'these rows are'} flattered."
    )


def _changes(by_group: Mapping[str, Mapping[str, Comparison]], title: str) -> str:
    """Which changes matter beyond noise."""
    every = [(group, label, change) for group, changes in by_group.items() for label, change in changes.items()]
    found = [one for one in every if one[2].p is not None]
    if not found:
        return f"{title}: too few seeds for a test."
    beyond = [(group, label, change) for group, label, change in found if change.is_beyond_noise]
    if not beyond:
        return f"No change of {title} differs from the default beyond noise."
    said = []
    for side, is_side in (("below", lambda value: value < 0), ("above", lambda value: value >= 0)):
        names = [f"{g.lower()} {n} ({points(c.difference)})" for g, n, c in beyond if is_side(c.difference)]
        said += [f"{side} the default: {listed(names)}"] if names else []
    rest = len(found) - len(beyond)
    left = f" The other {counted(rest, 'change')} cannot be told apart from it." if rest else ""
    return f"Beyond noise {'; beyond noise '.join(said)}.{left}"


def _changes_figure(by_group: Mapping[str, Mapping[str, Comparison]]) -> Figure:
    margins: list[figures.Margin] = []
    breaks: list[int] = []
    for group, changes in by_group.items():
        breaks += [len(margins)] if margins else []
        margins += [
            figures.Margin(f"{group}: {label}", found.by_seed, found.is_beyond_noise)
            for label, found in changes.items()
        ]
    return figures.margins(margins, "difference from the default, points of overall accuracy", breaks)

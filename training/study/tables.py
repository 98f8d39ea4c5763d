"""The sections of a report that compare methods: baselines, score functions, ablations, ingredients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from matplotlib.figure import Figure

from hyperscene.training.study import figures
from hyperscene.training.study.pages import Block, FigureBlock, Paragraph, Row, Table
from hyperscene.training.study.plan import (
    DEFAULT_RECIPE,
    DEFAULT_ROWS,
    DEFAULT_VARIANT,
    SEPARATION_PX,
    Amount,
    crosses_separation,
)
from hyperscene.training.study.results import (
    Comparison,
    Method,
    Study,
    best,
    compare_all,
    compare_main_method,
    compare_to,
    complete,
    main_method,
    seeds_of,
    with_common_seeds,
)
from hyperscene.training.study.statistics import detectable_effect
from hyperscene.training.study.text import (
    MARKS,
    NOISE,
    counted,
    difference,
    labels_of,
    listed,
    mean_fit_seconds,
    over_seeds,
    points,
    score_rows,
    scored_by,
    share,
)

MAX_NAMES = 5  # methods that a sentence lists; more are counted


# Ours beside the baselines


def against_baselines(study: Study, prefix: str) -> Iterator[Block]:
    """A table for each amount of labels, and a figure of accuracy by number of labels."""
    for amount in study.amounts:
        if study.ours(amount) and study.baselines(amount):
            yield from _baseline_table(study, amount)
    lines = _lines_by_labels(study)
    if lines:
        yield FigureBlock(f"{prefix}labels", figures.accuracy_by_labels(lines), (
            "Overall accuracy against the number of labelled pixels to train on; mean and standard deviation over "
            "seeds. Baselines are dashed. Points of one amount are shifted sideways to keep their bars visible."
        ))  # fmt: skip


def _baseline_table(study: Study, amount: Amount) -> Iterator[Block]:
    ours, baselines = study.ours(amount), study.baselines(amount)
    methods = [*ours, *baselines]
    chosen, against = main_method(ours), compare_main_method(study, amount)
    assert chosen is not None
    leads = {found.second.label: difference(found) for found in against} | {chosen.label: "reference"}
    seconds = {method.label: "" if method.is_label_propagation else mean_fit_seconds(method) for method in methods}
    yield Table(
        f"Ours beside the baselines, {labels_of(study, amount)}",
        ["method", "OA", "AA", "kappa", f"lead in OA of {chosen.label}", "seconds to fit"],
        score_rows(methods, leads, baselines[0], seconds),
        f"{over_seeds(methods)} {MARKS} {NOISE}",
    )
    yield Paragraph(_against(chosen, [found for found in against if found.second.is_baseline]), is_finding=True)


def _against(chosen: Method, against: Sequence[Comparison]) -> str:
    """The baselines that ours is above, below, or not distinguishable from."""
    kinds = {
        "is beyond noise above": [found for found in against if found.is_beyond_noise and found.difference > 0],
        "is beyond noise below": [found for found in against if found.is_beyond_noise and found.difference <= 0],
        "is within noise of": [found for found in against if found.p is not None and not found.is_beyond_noise],
        "has too few common seeds for a test with": [found for found in against if found.p is None],
    }
    texts = [
        f"{kind} {listed([f'{found.second.label} ({points(found.difference)})' for found in of_kind])}"
        for kind, of_kind in kinds.items()
        if of_kind
    ]
    reached = f"{chosen.label[0].upper()}{chosen.label[1:]}: OA {share(*chosen.summary())}."
    return f"{reached} This {'; it '.join(texts)}." if texts else reached


def _lines_by_labels(study: Study) -> list[figures.Line]:
    """The methods that have more than one amount of labels."""
    found: dict[tuple[bool, str], list[figures.Point]] = {}
    for amount in study.amounts:
        for method in (*study.ours(amount), *study.baselines(amount)):
            point = figures.Point(study.labels_of(amount), *method.summary())
            found.setdefault((method.is_baseline, method.label), []).append(point)
    lines = [figures.Line(label, row, is_baseline) for (is_baseline, label), row in found.items() if len(row) > 1]
    return sorted(lines, key=lambda line: line.is_baseline)


# Table I


def score_functions(study: Study, prefix: str) -> Iterator[Block]:
    """Table I for each amount and recipe, with paired tests and a figure."""
    for amount in study.amounts:
        by_recipe = {recipe: with_common_seeds(study.variants(amount, recipe)) for recipe in study.recipes}
        by_recipe = {recipe: variants for recipe, variants in by_recipe.items() if len(variants) > 1}
        for recipe, variants in by_recipe.items():
            yield from _table_one(study, amount, recipe, variants, _baselines(study, amount, variants))
        if by_recipe:
            every = [method for variants in by_recipe.values() for method in variants]
            figure = _variants_figure(by_recipe, _baselines(study, amount, every))
            yield FigureBlock(f"{prefix}variants-{amount.id}", figure, (
                f"Table I as a figure, {labels_of(study, amount)}: small marks are seeds, large ones their means. "
                "If the small marks of two score functions overlap, the order of the large ones means little."
            ))  # fmt: skip


def _baselines(study: Study, amount: Amount, variants: Sequence[Method]) -> list[Method]:
    """The baselines over the seeds of the score functions."""
    seeds = seeds_of(variants)
    return [cut for cut in (method.restricted_to(seeds) for method in study.baselines(amount)) if cut.scores]


def _table_one(
    study: Study, amount: Amount, recipe: str, variants: Sequence[Method], baselines: Sequence[Method]
) -> Iterator[Block]:
    leader = best(variants)
    assert leader is not None
    compared = compare_all(variants)
    behind = {found.second.label: difference(found.reversed) for found in compared if found.first is leader}
    behind |= {found.first.label: difference(found) for found in compared if found.second is leader}
    below = " Below the rule: baselines on the same pixels." if baselines else ""
    yield Table(
        f"Table I, recipe {recipe}, {labels_of(study, amount)}",
        ["score function", "OA", "AA", "kappa", "OA against the best score function"],
        score_rows([*variants, *baselines], behind | {leader.label: "best"}, baselines[0] if baselines else None),
        f"{over_seeds(variants)} {scored_by(variants)} {MARKS} {NOISE}{below}",
    )
    yield Paragraph(_verdict(leader, variants, compared), is_finding=True)


def _verdict(leader: Method, variants: Sequence[Method], compared: Sequence[Comparison]) -> str:
    """The score functions with the highest mean, and which differences are beyond noise."""
    methods = complete(variants)
    tested = [found for found in compared if found.p is not None and {found.first, found.second} <= set(methods)]
    highest = "the highest mean" if len(methods) == len(variants) else "the highest mean of those with all seeds"
    beyond = [found for found in tested if found.is_beyond_noise]
    name = f"{leader.label[0].upper()}{leader.label[1:]}"
    if not tested:
        few = counted(len(leader.seeds), "seed")
        return f"{name} has {highest}, but {few} cannot be tested: this is no ranking."
    if not beyond:
        seeds = len(leader.seeds)
        return (
            f"No two score functions differ beyond noise ({len(tested)} pairs, {counted(seeds, 'seed')}): "
            f"the order of this table, {leader.label} first, is no ranking. They may still differ: with so many pairs, "
            f"the test finds a difference only if its mean is {detectable_effect(len(tested), seeds):.1f} times its "
            "standard deviation over seeds."
        )
    beaten = [found.second.label for found in beyond if found.first is leader]
    alike = [method.label for method in methods if method is not leader and method.label not in beaten]
    some = (
        listed(alike) if 0 < len(alike) <= MAX_NAMES else f"the other {len(alike)}" if beaten else "any of the others"
    )
    parts = [
        *([f"is beyond noise above {listed(beaten)}"] if beaten else []),
        *([f"is within noise of {some}"] if alike else []),
    ]
    total = f"{len(beyond)} of the {len(tested)} pairs of score functions differ beyond noise"
    return f"{total}. {name} has {highest}: it {', but '.join(parts)}."


def _variants_figure(by_recipe: Mapping[str, Sequence[Method]], baselines: Sequence[Method]) -> Figure:
    labels = list(dict.fromkeys(method.label for variants in by_recipe.values() for method in variants))
    series: dict[str, list[list[float]]] = {}
    for recipe, variants in by_recipe.items():
        values = {method.label: method.values() for method in variants}
        series[f"recipe {recipe}"] = [values.get(label, []) for label in labels] + [[]] * len(baselines)
    if baselines:
        series["baseline"] = [[]] * len(labels) + [method.values() for method in baselines]
    breaks = [len(labels)] if baselines else []
    return figures.accuracy_by_method([*labels, *(method.label for method in baselines)], series, breaks)


# Table II


def ablations(study: Study, prefix: str) -> Iterator[Block]:
    """Table II for each amount and recipe."""
    for amount in study.amounts:
        for recipe in sorted({cell["recipe"] for cell in study.cells_of("ablations", amount)}):
            yield from _changes_table(study, "ablations", "Table II", amount, recipe, prefix)


def ingredients(study: Study, prefix: str) -> Iterator[Block]:
    """The effect of each part of the default recipe, for each amount."""
    for amount in study.amounts:
        if study.cells_of("ingredients", amount):
            yield from _changes_table(study, "ingredients", "Ingredients", amount, DEFAULT_RECIPE, prefix)


def _changes_table(study: Study, part: str, title: str, amount: Amount, recipe: str, prefix: str) -> Iterator[Block]:
    groups = study.changes(part, amount, recipe)
    changed = [method for methods in groups.values() for method in methods]
    defaults = [one for one in study.variants(amount, recipe) if one.cells[0]["name"] == DEFAULT_VARIANT]
    default = next((cut for cut in (one.restricted_to(seeds_of(changed)) for one in defaults) if cut.scores), None)
    against = [found.reversed for found in compare_to(default, changed)] if default else []
    compared = [default, *changed] if default else changed
    by_group = {
        group: {found.first.label: found for found in against if found.first in methods}
        for group, methods in groups.items()
    }
    rows: list[Row] = []
    for group, methods in groups.items():
        label, index = DEFAULT_ROWS.get(group, ("default", 0))
        lines = list(methods)
        if default:
            lines.insert(index, Method(label, default.scores, default.cells))
            lines = with_common_seeds(lines)
        rows.append(Row(group))
        last = {name: difference(found) for name, found in by_group[group].items()}
        rows += score_rows(lines, last | {label: "default"})
    yield Table(
        f"{title}, recipe {recipe}, {labels_of(study, amount)}",
        ["configuration", "OA", "AA", "kappa", "OA against the default"],
        rows,
        f"Each row changes one thing. {over_seeds(changed)} {scored_by(compared)} Within each "
        f"group: {MARKS} {NOISE}{_optimistic_rows(study, changed)}",
    )
    if against:
        yield Paragraph(_changes(by_group, title), is_finding=True)
        yield FigureBlock(f"{prefix}{part}-{recipe}-{amount.id}", _changes_figure(by_group), (
            f"{title} as differences from the default, recipe {recipe}, {labels_of(study, amount)}. Left of the line "
            "the change costs accuracy. A hollow mark may be chance; each tick is one seed."
        ))  # fmt: skip


def _optimistic_rows(study: Study, changed: Sequence[Method]) -> str:
    """Names the rows whose patches reach from training to test pixels in a spatial split."""
    names = [method.label for method in changed if crosses_separation(method.cells[0]["name"])]
    if study.split == "random" or not names:
        return ""
    return (
        f" Training and test pixels lie {SEPARATION_PX} px apart, and patches of {listed(names)} reach further: "
        f"{'its score is' if len(names) == 1 else 'their scores are'} too high."
    )


def _changes(by_group: Mapping[str, Mapping[str, Comparison]], title: str) -> str:
    """The changes that are beyond noise."""
    every = [(group, label, change) for group, changes in by_group.items() for label, change in changes.items()]
    found = [one for one in every if one[2].p is not None]
    if not found:
        return f"{title}: too few seeds for a test."
    beyond = [(group, label, change) for group, label, change in found if change.is_beyond_noise]
    if not beyond:
        return f"No change of {title} differs from the default beyond noise."
    texts = []
    for side, is_side in (("below", lambda value: value < 0), ("above", lambda value: value >= 0)):
        names = [f"{g.lower()} {n} ({points(c.difference)})" for g, n, c in beyond if is_side(c.difference)]
        texts += [f"{side} the default: {listed(names)}"] if names else []
    rest = len(found) - len(beyond)
    left = f" The other {counted(rest, 'change')} {'is' if rest == 1 else 'are'} within noise." if rest else ""
    return f"Beyond noise {'; beyond noise '.join(texts)}.{left}"


def _changes_figure(by_group: Mapping[str, Mapping[str, Comparison]]) -> Figure:
    margins: list[figures.DifferenceRow] = []
    breaks: list[int] = []
    for group, changes in by_group.items():
        breaks += [len(margins)] if margins else []
        margins += [
            figures.DifferenceRow(f"{group}: {label}", found.by_seed, found.is_beyond_noise)
            for label, found in changes.items()
        ]
    return figures.differences_by_row(margins, "difference from the default, points of overall accuracy", breaks)

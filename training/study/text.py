"""Texts of the report for accuracies, differences, amounts of labels, and rows of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hyperscene.training.study.pages import Entry, Row
from hyperscene.training.study.plan import Amount
from hyperscene.training.study.results import MIN_SEEDS, NOISE_P, Comparison, Method, Record, Study, complete
from hyperscene.training.study.statistics import METRICS, top_three

MARKS = "① best, ② second, ③ third, by the mean."
NOISE = "● beyond noise, ○ within."
HOW_TESTED = (
    "Beyond noise: a paired t-test over seeds (same labels, same test pixels), corrected after Holm for all tests "
    f"of its table, gives p < {NOISE_P}. Rows of the overview are not corrected for "
    f"each other; label propagation is tested separately. Fewer than {MIN_SEEDS} seeds are not tested. The test is "
    "about other draws of labels from this scene, not about other scenes."
)


def share(mean: float, sd: float | None, digits: int = 2) -> str:
    """A percentage with its standard deviation, if there is one."""
    return f"{mean:.{digits}f}" if sd is None else f"{mean:.{digits}f} ± {sd:.{digits}f}"


def chance(p: float | None) -> str:
    """A corrected p value."""
    if p is None:
        return "not tested"
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}" if p < 0.1 else f"p = {p:.2f}"


def points(difference: float, digits: int = 2) -> str:
    """A difference with its sign."""
    return f"{difference:+.{digits}f}".replace("-", "−")  # noqa: RUF001 - a minus sign as wide as the plus


def difference(comparison: Comparison) -> str:
    """A difference and its p value; a filled mark is beyond noise, a hollow one is not."""
    mark = "" if comparison.p is None else "● " if comparison.is_beyond_noise else "○ "
    return f"{points(comparison.difference)} {mark}{chance(comparison.p)}"


def listed(names: Sequence[str]) -> str:
    """The names as a list: one, two and three."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def counted(count: int, one: str, many: str | None = None) -> str:
    """A number with its noun, in the singular or plural."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """A time in hours, or in minutes below one hour."""
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{seconds / 60:.1f} minutes"


def machine_name(machine: Record) -> str:
    """The processor with its cores and threads, and the GPU."""
    threads = f", {counted(machine['threads'], 'thread')}" if machine.get("threads") else ""
    gpu = f", {machine['gpu']}" if machine.get("gpu") else ""
    return f"{machine['processor']} ({counted(machine['cores'], 'core')}{threads}){gpu}"


def labels_of(study: Study, amount: Amount) -> str:
    """The amount of labels with the number of pixels."""
    if amount.train_pixels is not None:
        return short_amount(amount)
    of_the_labels = "" if amount.per_class is not None else " of the labels"
    return f"{short_amount(amount)}{of_the_labels} ({study.labels_of(amount):.0f} pixels)"


def short_amount(amount: Amount) -> str:
    """The amount of labels in a short form."""
    return amount.label.replace(" %", "\N{NO-BREAK SPACE}%")


def ranks(methods: Sequence[Method], metric: str, digits: int = 2) -> dict[str, int]:
    """Ranks by label; means over fewer seeds than others have are not ranked."""
    ranked = complete(methods)
    found = top_three([method.summary(metric)[0] for method in ranked], digits) if len(ranked) > 1 else []
    return {method.label: rank for method, rank in zip(ranked, found, strict=False)}


def score_rows(
    methods: Sequence[Method],
    last: Mapping[str, str],
    ruled: Method | None = None,
    more: Mapping[str, str] | None = None,
) -> list[Row]:
    """Rows with OA, AA, kappa and, by label, the columns after them; `ruled` has a rule above."""
    of_metric = {metric: ranks(methods, metric) for metric in METRICS}
    return [
        Row(
            method.label + unfinished(method, methods),
            [
                *(Entry(share(*method.summary(key)), of_metric[key].get(method.label, 0)) for key in METRICS),
                Entry(last.get(method.label, "")),
                *([] if more is None else [Entry(more.get(method.label, ""))]),
            ],
            is_ruled=method is ruled,
        )
        for method in methods
    ]


def unfinished(method: Method, methods: Sequence[Method]) -> str:
    """The note on a method with fewer seeds than others."""
    most = max(len(other.seeds) for other in methods)
    return "" if len(method.seeds) == most else f" ({len(method.seeds)} of {most} seeds)"


def over_seeds(methods: Sequence[Method]) -> str:
    """What the scores of a table are means over."""
    most = max(len(method.seeds) for method in methods)
    return f"In percent, mean ± standard deviation over {most} seeds." if most > 1 else "In percent, one seed."


def scored_by(methods: Sequence[Method]) -> str:
    """Whether the scores of networks are those of the map or of single patches."""
    ways = {cell.get("judged_by") or "patches" for method in methods for cell in method.cells}
    if ways == {"map"}:
        return "Scored by the map that the service delivers."
    if ways == {"patches"}:
        return "Scored pixel by pixel, each with its own patch."
    return "Scored by the map that the service delivers; older cells are scored pixel by pixel."


def mean_fit_seconds(method: Method) -> str:
    """Mean seconds of a fit, including label propagation that was cached."""
    known = [
        cell["seconds"]["fit"] + (cell.get("cached_seconds") or 0)
        for cell in method.cells
        if (cell.get("seconds") or {}).get("fit") is not None
    ]
    return f"{np.mean(known):.3g}" if known else ""

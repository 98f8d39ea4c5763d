"""How a report words its numbers: accuracies, differences, amounts of labels, and rows of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from training.findings import FEWEST_SEEDS, NOISE_P, Comparison, Method, Record, Study, complete
from training.pages import Entry, Row
from training.plan import Amount
from training.statistics import METRICS, marks

MARKS = "① best, ② second, ③ third, by the mean."
NOISE = "● beyond noise, ○ within."
HOW_TESTED = (
    "Beyond noise means: a paired t-test over seeds (both sides learn from the same labels and are judged by the same "
    f"pixels), corrected after Holm for all comparisons of its table, gives p < {NOISE_P}. Lines of an overview come "
    "from tables of their own and are not corrected for each other; teachers are tested apart. Fewer than "
    f"{FEWEST_SEEDS} seeds are not tested. It speaks of other draws of labels from this scene, not of other scenes."
)


def share(mean: float, sd: float | None, digits: int = 2) -> str:
    """A percentage and its standard deviation, where it has one."""
    return f"{mean:.{digits}f}" if sd is None else f"{mean:.{digits}f} ± {sd:.{digits}f}"


def chance(p: float | None) -> str:
    """A corrected p."""
    if p is None:
        return "not tested"
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}" if p < 0.1 else f"p = {p:.2f}"


def points(difference: float, digits: int = 2) -> str:
    """A difference with its sign."""
    return f"{difference:+.{digits}f}".replace("-", "−")  # noqa: RUF001 - the sign that is as wide as a plus


def difference(comparison: Comparison) -> str:
    """As in the pictures, a filled mark is beyond noise and a hollow one within."""
    mark = "" if comparison.p is None else "● " if comparison.is_beyond_noise else "○ "
    return f"{points(comparison.difference)} {mark}{chance(comparison.p)}"


def listed(names: Sequence[str]) -> str:
    """One, two and three."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def counted(count: int, one: str, many: str | None = None) -> str:
    """A number and what is counted; where nothing else is said, many take an s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """Hours, or minutes where they are few."""
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{seconds / 60:.1f} minutes"


def machine_name(machine: Record) -> str:
    """What computed: the processor, how many of its cores there were, how many threads used them, and a GPU."""
    threads = f", {counted(machine['threads'], 'thread')}" if machine.get("threads") else ""
    gpu = f", {machine['gpu']}" if machine.get("gpu") else ""
    return f"{machine['processor']} ({counted(machine['cores'], 'core')}{threads}){gpu}"


def labels_of(study: Study, amount: Amount) -> str:
    """How many labels were learnt from."""
    if amount.train_pixels is not None:
        return short_amount(amount)
    of_the_labels = "" if amount.per_class is not None else " of the labels"
    return f"{short_amount(amount)}{of_the_labels} ({study.labels_of(amount):.0f} pixels)"


def short_amount(amount: Amount) -> str:
    """The same where there is little room."""
    return amount.label.replace(" %", "\N{NO-BREAK SPACE}%")


def ranks(methods: Sequence[Method], metric: str, digits: int = 2) -> dict[str, int]:
    """The paper's marks by label; a mean over fewer seeds than others have is not in the race."""
    racing = complete(methods)
    places = marks([method.summary(metric)[0] for method in racing], digits) if len(racing) > 1 else []
    return {method.label: place for method, place in zip(racing, places, strict=False)}


def score_rows(
    methods: Sequence[Method],
    last: Mapping[str, str],
    ruled: Method | None = None,
    more: Mapping[str, str] | None = None,
) -> list[Row]:
    """OA, AA, kappa, and by label what stands in the columns after them; `ruled` has a rule above."""
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
    """What to add to a name that stands for fewer seeds than others do."""
    most = max(len(other.seeds) for other in methods)
    return "" if len(method.seeds) == most else f" ({len(method.seeds)} of {most} seeds)"


def over_seeds(methods: Sequence[Method]) -> str:
    """What the numbers of a table are."""
    most = max(len(method.seeds) for method in methods)
    return f"In percent, mean ± standard deviation over {most} seeds." if most > 1 else "In percent, one seed."


def judged(methods: Sequence[Method]) -> str:
    """What the scores of networks were taken from."""
    ways = {cell.get("judged_by") or "patches" for method in methods for cell in method.cells}
    if ways == {"map"}:
        return "Judged by the map that the service delivers."
    if ways == {"patches"}:
        return "Judged pixel by pixel, each by a patch of its own."
    return "Judged by the map that the service delivers; cells that were made before that was so, pixel by pixel."


def mean_fit_seconds(method: Method) -> str:
    """How long a fit takes."""
    known = [
        cell["seconds"]["fit"] + (cell.get("remembered_seconds") or 0)
        for cell in method.cells
        if (cell.get("seconds") or {}).get("fit") is not None
    ]
    return f"{np.mean(known):.3g}" if known else ""

"""The report of a study: its facts, an overview, and the sections of tables and figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from hyperscene.training.baselines import BASELINES
from hyperscene.training.study import figures, model_figures, tables
from hyperscene.training.study.comparison import compare_with_paper
from hyperscene.training.study.folder import study_name
from hyperscene.training.study.pages import (
    Block,
    Entry,
    FigureBlock,
    Heading,
    Listing,
    Paragraph,
    Row,
    Table,
    write_pages,
)
from hyperscene.training.study.plan import Amount
from hyperscene.training.study.results import (
    MIN_SEEDS,
    Comparison,
    Method,
    Study,
    best,
    compare_main_method,
    load_study,
    position_in,
    recipe_order,
    seconds_of,
)
from hyperscene.training.study.text import (
    HOW_TESTED,
    MARKS,
    NOISE,
    counted,
    duration,
    listed,
    machine_name,
    points,
    ranks,
    share,
    short_amount,
    unfinished,
)

PARTS: tuple[tuple[str, Callable[[Study, str], Iterator[Block]]], ...] = (
    ("Ours and the baselines", tables.against_baselines),
    ("Table I: score functions", tables.score_functions),
    ("Comparison with the paper", compare_with_paper),
    ("Table II: ablation and noise", tables.ablations),
    ("Parts of the recipe", tables.ingredients),
    ("Classes", model_figures.classes),
    ("Class map", model_figures.maps),
    ("Features and attention", model_figures.inside),
    ("Speed", model_figures.speed),
    ("Calibration", model_figures.calibration),
    ("Settings that the recipe chose", model_figures.recipe_choices),
)


def write_report(directory: Path) -> None:
    """Write report.html, report.md and figures/ into a study's folder, finished or not."""
    study = load_study(directory)
    blocks = [*_facts(study), Heading("In short"), *_overview([study]), *_parts(study, level=2, prefix="")]
    write_pages(directory, f"Study of {study.title}", blocks)


def write_collection(
    directories: Sequence[Path], output: Path, title: str | None = None, command: str | None = None
) -> None:
    """Write one report over several studies into `output`; a table over all of them comes first."""
    studies = _with_unique_titles([load_study(directory) for directory in directories])
    blocks: list[Block] = [*_facts_of_all(studies, command), Heading("In short"), *_overview(studies)]
    for number, study in enumerate(studies, 1):
        folder = re.sub(r"[^A-Za-z0-9.-]+", "-", study_name(study.path))
        blocks += [Heading(study.title), *_facts(study), *_parts(study, level=3, prefix=f"{number}-{folder}-")]
    write_pages(output, title or f"{counted(len(studies), 'study', 'studies')} in one report", blocks)


def _with_unique_titles(studies: Sequence[Study]) -> list[Study]:
    """Add the folder to the names of studies of the same scene and split."""
    titles = Counter(study.title for study in studies)
    return [
        replace(study, name=f"{study.name} ({study_name(study.path)})") if titles[study.title] > 1 else study
        for study in studies
    ]


def _facts_of_all(studies: Sequence[Study], command: str | None) -> Iterator[Block]:
    cells = [cell for study in studies for cell in study.cells]
    yield Paragraph(
        f"{counted(len(studies), 'study', 'studies')} with {counted(len(cells), 'finished cell')}, "
        f"{duration(seconds_of(cells))} of computing in total."
    )
    if command:
        yield Paragraph("Command of this report:")
        yield Listing([command])


def _parts(study: Study, level: int, prefix: str) -> Iterator[Block]:
    """The sections of one study; those without content are left out."""
    for title, part in PARTS:
        blocks = list(part(study, prefix))
        if blocks:
            yield Heading(title, level)
            yield from blocks


def _facts(study: Study) -> Iterator[Block]:
    scene = study.scene
    seeds = {cell["seed"] for cell in study.cells}
    where = f" on {listed([machine_name(machine) for machine in study.machines])}" if study.machines else ""
    made = (
        f"{counted(len(study.cells), 'finished cell')} over {counted(len(seeds), 'seed')}, "
        f"{duration(seconds_of(study.cells))} of computing{where}"
        if study.cells
        else "No cell is finished yet"
    )
    yield Paragraph(
        f"{scene['name']}: {scene['rows']} x {scene['cols']} pixels, {scene['bands']} bands, "
        f"{len(scene['class_names'])} classes, {sum(scene['class_pixels']):,} labelled pixels. "
        f"{made}. hyperscene {study.code_version}."
    )
    if study.commands:
        yield Paragraph(f"Command{'s' * (len(study.commands) > 1)} of this study:")
        yield Listing(study.commands)
    yield from _classes_without_test_pixels(study)
    if study.split == "random":
        yield Paragraph(
            "With a random split test pixels lie beside training pixels, which favours every method that uses "
            "neighbourhoods. A spatial split shows what to expect for unlabelled fields elsewhere."
        )


def _classes_without_test_pixels(study: Study) -> Iterator[Block]:
    """Names the classes without test pixels."""
    tested = {(Amount(**cell["amount"]), cell["seed"]): cell["scores"].get("per_class", ()) for cell in study.cells}
    absent = Counter(found["name"] for classes in tested.values() for found in classes if not found["pixels"])
    if absent:
        splits = len(tested)
        names = [name if count == splits else f"{name} ({count} of {splits} splits)" for name, count in absent.items()]
        yield Paragraph(
            f"There are no test pixels of {listed(names)}: the scores do not include "
            f"{'it' if len(names) == 1 else 'them'}, and average accuracy (AA) is over the other classes."
        )


VERDICTS: tuple[tuple[str, Callable[[Comparison], bool]], ...] = (
    ("Ours is above the best baseline, beyond noise", lambda found: found.is_beyond_noise and found.difference > 0),
    ("Ours is below the best baseline, beyond noise", lambda found: found.is_beyond_noise and found.difference <= 0),
    (
        "Ours and the best baseline are within noise",
        lambda found: found.p is not None and not found.is_beyond_noise,
    ),
    ("Too few common seeds for a test", lambda found: found.p is None),
)
StudyAmount = tuple[Study, Amount]
Comparisons = dict[StudyAmount, Comparison]


def _overview(studies: Sequence[Study]) -> Iterator[Block]:
    """One row for each scene and amount of labels: the overall accuracy of each method."""
    found = {(study, amount): _methods(study, amount) for study in studies for amount in study.amounts}
    found = {line: methods for line, methods in found.items() if methods}
    if not found:
        yield Paragraph("No cell is finished yet that belongs in a table.")
        return
    comparisons = {line: comparison for line in found if (comparison := _against_best_baseline(*line)) is not None}
    yield from _verdicts(comparisons, len(studies) > 1)
    yield _overview_table(found, comparisons, len(studies) > 1)
    if any(len(method.seeds) >= MIN_SEEDS for methods in found.values() for method in methods.values()):
        yield Paragraph(HOW_TESTED)
    if len(comparisons) > 1:
        yield FigureBlock("overview", _overview_figure(comparisons, len(studies) > 1), (
            "Ours minus the best baseline, in points of overall accuracy. Right of the line ours is better; a filled "
            "mark is beyond noise, a hollow one may be chance. Each tick is one seed."
        ), in_markdown=True)  # fmt: skip


def _methods(study: Study, amount: Amount) -> dict[str, Method]:
    return {method.label: method for method in (*study.ours(amount), *study.baselines(amount))}


def _overview_table(found: dict[StudyAmount, dict[str, Method]], comparisons: Comparisons, names_scene: bool) -> Table:
    every = {label: method for methods in found.values() for label, method in methods.items()}
    labels = sorted(every, key=lambda label: _column(every[label]))
    rows: list[Row] = []
    for index, ((study, amount), methods) in enumerate(found.items()):
        if names_scene and (index == 0 or list(found)[index - 1][0] is not study):
            rows.append(Row(study.title))
        among = list(methods.values())
        of_label = ranks(among, "oa", digits=1)
        entries = [_overview_entry(methods.get(label), among, of_label.get(label, 0)) for label in labels]
        comparison = comparisons.get((study, amount))
        rows.append(
            Row(_line_name(study, amount), [*entries, *([Entry(_difference_entry(comparison))] if comparisons else [])])
        )
    compared = (
        " The last column compares ours (by the default recipe where that was run) with the baseline of the highest "
        f"mean, in points: {NOISE}"
        if comparisons
        else ""
    )
    return Table(
        "Overall accuracy of every method, in percent",
        ["to train on (labels)", *labels, *(["ours minus best baseline"] if comparisons else [])],
        rows,
        f"{_seeds_note(found)}. {MARKS} 'Ours' is the paper's network with cosine squared attention, by recipe; 'map' "
        "is the map that the service delivers, 'label propagation alone' the pseudo-labels that the network learnt "
        f"from; the others predict pixel by pixel.{compared}",
    )


def _seeds_note(found: dict[StudyAmount, dict[str, Method]]) -> str:
    """The number of seeds of the rows, and what marks a method with fewer than others in its row."""
    seeds = [{len(method.seeds) for method in methods.values()} for methods in found.values()]  # row by row
    low, high = min(map(max, seeds)), max(map(max, seeds))
    several = f"Means ± standard deviation over {f'{low} to ' if low < high else ''}{high} seeds"
    fewer = "; † over fewer than others in the row" if any(len(of_row) > 1 for of_row in seeds) else ""
    return (several if high > 1 else "One seed") + fewer


def _column(method: Method) -> tuple[object, ...]:
    """Sort key of a column: ours by recipe, then the baselines."""
    if method.is_baseline:
        return 1, position_in(method.cells[0]["name"], BASELINES)
    return 0, recipe_order(method.cells[0]["recipe"]), method.label


def _line_name(study: Study, amount: Amount) -> str:
    labels = "" if amount.train_pixels else f" ({study.labels_of(amount):.0f})"
    return f"{short_amount(amount)}{labels}"


def _overview_entry(method: Method | None, among: Sequence[Method], rank: int) -> Entry:
    if method is None:
        return Entry("")
    mark = " †" if unfinished(method, among) else ""
    return Entry(share(*method.summary(), digits=1) + mark, rank)


def _difference_entry(comparison: Comparison | None) -> str:
    if comparison is None:
        return ""
    mark = "" if comparison.p is None else " ●" if comparison.is_beyond_noise else " ○"
    return points(comparison.difference, digits=1) + mark


def _against_best_baseline(study: Study, amount: Amount) -> Comparison | None:
    """Our main method against the baseline with the highest mean."""
    against = compare_main_method(study, amount)
    strongest = best([found.second for found in against if found.second.is_baseline])
    return next((found for found in against if found.second is strongest), None)


def _verdicts(comparisons: Comparisons, names_scene: bool) -> Iterator[Block]:
    """The rows in which ours is above or below the best baseline, or neither."""
    for title, is_kind in VERDICTS:
        by_study: dict[str, list[str]] = {}
        for (study, amount), found in comparisons.items():
            if is_kind(found):
                text = f"{short_amount(amount)} ({points(found.difference)} against {found.second.label})"
                by_study.setdefault(study.title if names_scene else "", []).append(text)
        if by_study:
            texts = [f"{scene}: {listed(amounts)}" if scene else listed(amounts) for scene, amounts in by_study.items()]
            count = sum(map(len, by_study.values()))
            yield Paragraph(f"{title} ({count} of {len(comparisons)}). {'; '.join(texts)}.", is_finding=True)


def _overview_figure(comparisons: Comparisons, names_scene: bool) -> Figure:
    margins, breaks, last = [], [], None
    for index, ((study, amount), found) in enumerate(comparisons.items()):
        if last not in (None, study):
            breaks.append(index)
        last = study
        name = f"{study.title}: " if names_scene else ""
        margins.append(figures.DifferenceRow(f"{name}{short_amount(amount)}", found.by_seed, found.is_beyond_noise))
    return figures.differences_by_row(margins, "ours minus the best baseline, points of overall accuracy", breaks)

"""The report of a study, from its files alone: tables, paired tests, pictures, and plain words for what they show."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from training import figures, portraits, tables
from training.comparison import papers_figures
from training.findings import (
    FEWEST_SEEDS,
    Comparison,
    Method,
    Study,
    best,
    compare_headline,
    load_study,
    recipe_place,
    seconds_of,
)
from training.pages import Block, Entry, Heading, Listing, Paragraph, Picture, Row, Table, markdown_page, write_pages
from training.plan import BASELINES, Amount
from training.summary import standing
from training.wording import (
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
    ("Ours beside the baselines", tables.beside_baselines),
    ("Table I: score functions", tables.score_functions),
    ("The paper's figures", papers_figures),
    ("Table II: ablation and noise", tables.ablations),
    ("What the recipe is made of", tables.ingredients),
    ("Classes", portraits.classes),
    ("The map", portraits.maps),
    ("Inside the network", portraits.inside),
    ("Accuracy against speed", portraits.speed),
    ("Calibration", portraits.calibration),
    ("What the recipe chose", portraits.choices),
)


def write_report(directory: Path) -> None:
    """report.html, report.md and figures/ beside the cells of a study, finished or not."""
    study = load_study(directory)
    blocks = [*_facts(study), Heading("In short"), *_overview([study]), *_parts(study, level=2, prefix="")]
    write_pages(directory, f"Study of {study.title}", blocks)


def published_page(directory: Path) -> str | None:
    """Ours beside the paper's tables in Markdown; None where the scene is none of the paper's."""
    study = load_study(directory)
    blocks = list(papers_figures(study))
    return markdown_page(f"{study.title}: ours beside the paper's figures", blocks) if blocks else None


def write_collection(
    directories: Sequence[Path], output: Path, title: str | None = None, command: str | None = None
) -> None:
    """One report over several studies in the folder `output`, with a table over all of them first."""
    studies = _told_apart([load_study(directory) for directory in directories])
    blocks: list[Block] = [*_facts_of_all(studies, command), Heading("In short"), *_overview(studies)]
    for number, study in enumerate(studies, 1):
        folder = re.sub(r"[^A-Za-z0-9.-]+", "-", study.directory.resolve().name)
        blocks += [Heading(study.title), *_facts(study), *_parts(study, level=3, prefix=f"{number}-{folder}-")]
    write_pages(output, title or f"{counted(len(studies), 'study', 'studies')} in one report", blocks)


def _told_apart(studies: Sequence[Study]) -> list[Study]:
    """Studies of one scene and split are called by their folders too."""
    titles = Counter(study.title for study in studies)
    return [
        replace(study, name=f"{study.name} ({study.directory.resolve().name})") if titles[study.title] > 1 else study
        for study in studies
    ]


def _facts_of_all(studies: Sequence[Study], command: str | None) -> Iterator[Block]:
    cells = [cell for study in studies for cell in study.cells]
    yield Paragraph(
        f"{counted(len(studies), 'study', 'studies')} with {counted(len(cells), 'finished cell')}, "
        f"{duration(seconds_of(cells))} of computing in all; each says below how it was made."
    )
    if command:
        yield Paragraph("This report was put together by")
        yield Listing([command])


def _parts(study: Study, level: int, prefix: str) -> Iterator[Block]:
    """Everything about one study; a part for which nothing was measured is left out."""
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
        yield Paragraph(f"Made by {'this command' if len(study.commands) == 1 else 'these commands'}:")
        yield Listing(study.commands)
    yield from _untested(study)
    if study.split == "random":
        yield Paragraph(
            "A random split flatters every method that looks at neighbourhoods: test pixels lie beside training "
            "pixels. What to expect of an unlabelled field elsewhere, a spatial split says."
        )


def _untested(study: Study) -> Iterator[Block]:
    """Classes of which a split has no test pixels: averages over classes do not know of them."""
    tested = {(Amount(**cell["amount"]), cell["seed"]): cell["scores"].get("per_class", ()) for cell in study.cells}
    absent = Counter(found["name"] for classes in tested.values() for found in classes if not found["pixels"])
    if absent:
        splits = len(tested)
        said = [name if count == splits else f"{name} ({count} of {splits} splits)" for name, count in absent.items()]
        yield Paragraph(
            f"There are no test pixels of {listed(said)}: scores do not speak of "
            f"{'it' if len(said) == 1 else 'them'}, and average accuracy (AA) is over the others."
        )


VERDICTS: tuple[tuple[str, Callable[[Comparison], bool]], ...] = (
    ("Ours is above the best baseline, beyond noise", lambda found: found.is_beyond_noise and found.difference > 0),
    ("Ours is below the best baseline, beyond noise", lambda found: found.is_beyond_noise and found.difference <= 0),
    (
        "Ours and the best baseline cannot be told apart",
        lambda found: found.p is not None and not found.is_beyond_noise,
    ),
    ("Too few seeds in common for a test", lambda found: found.p is None),
)
Line = tuple[Study, Amount]
Rivalries = dict[Line, Comparison]


def _overview(studies: Sequence[Study]) -> Iterator[Block]:
    """One line for every scene and amount of labels: every method's overall accuracy, and ours against the best."""
    found = {(study, amount): _methods(study, amount) for study in studies for amount in study.amounts}
    found = {line: methods for line, methods in found.items() if methods}
    if not found:
        yield Paragraph("No cell is finished yet that a table could be made of.")
        return
    rivalries = {line: rivalry for line in found if (rivalry := _rivalry(*line)) is not None}
    yield from _verdicts(rivalries, len(studies) > 1)
    yield _overview_table(found, rivalries, len(studies) > 1)
    if any(len(method.seeds) >= FEWEST_SEEDS for methods in found.values() for method in methods.values()):
        yield Paragraph(HOW_TESTED)
    if len(rivalries) > 1:
        yield Picture("overview", _rivalry_figure(rivalries, len(studies) > 1), (
            "Ours minus the best baseline, in points of overall accuracy. Right of the line ours is better; a filled "
            "mark is a difference beyond noise, a hollow one could be chance. Each tick is one seed."
        ))  # fmt: skip


def _methods(study: Study, amount: Amount) -> dict[str, Method]:
    return {method.label: method for method in (*study.ours(amount), *study.baselines(amount))}


def _overview_table(found: dict[Line, dict[str, Method]], rivalries: Rivalries, names_scene: bool) -> Table:
    every = {label: method for methods in found.values() for label, method in methods.items()}
    labels = sorted(every, key=lambda label: _column(every[label]))
    rows: list[Row] = []
    for place, ((study, amount), methods) in enumerate(found.items()):
        if names_scene and (place == 0 or list(found)[place - 1][0] is not study):
            rows.append(Row(study.title))
        among = list(methods.values())
        of_label = ranks(among, "oa", digits=1)
        entries = [_overview_entry(methods.get(label), among, of_label.get(label, 0)) for label in labels]
        rivalry = rivalries.get((study, amount))
        rows.append(Row(_line_name(study, amount), [*entries, *([Entry(_lead(rivalry))] if rivalries else [])]))
    seeds = [{len(method.seeds) for method in methods.values()} for methods in found.values()]  # line by line
    low, high = min(map(max, seeds)), max(map(max, seeds))
    over = f"Means ± standard deviation over {low} to {high} seeds" if low < high else (
        f"Means ± standard deviation over {high} seeds" if high > 1 else "One seed"
    )  # fmt: skip
    fewer = "; † over fewer than its neighbours" if any(len(of_line) > 1 for of_line in seeds) else ""
    compared = (
        " The last column compares ours (by the default recipe where that was run) with the baseline of the highest "
        f"mean, in points: {NOISE}"
        if rivalries
        else ""
    )
    return Table(
        "Overall accuracy of every method, in percent",
        ["to train on (labels)", *labels, *(["ours minus best baseline"] if rivalries else [])],
        rows,
        f"{over}{fewer}. {MARKS} 'Ours' is the paper's network with cosine squared attention, by recipe; 'map' is the "
        "map that the service delivers, 'teacher alone' what the network learnt from; the others answer pixel by "
        f"pixel.{compared}",
    )


def _column(method: Method) -> tuple[object, ...]:
    """Ours first, by recipe, its map beside it; baselines in their own order."""
    if method.is_baseline:
        return 1, standing(method.cells[0]["name"], BASELINES)
    return 0, recipe_place(method.cells[0]["recipe"]), method.label


def _line_name(study: Study, amount: Amount) -> str:
    labels = "" if amount.train_pixels else f" ({study.labels_of(amount):.0f})"
    return f"{short_amount(amount)}{labels}"


def _overview_entry(method: Method | None, among: Sequence[Method], rank: int) -> Entry:
    if method is None:
        return Entry("")
    mark = " †" if unfinished(method, among) else ""
    return Entry(share(*method.summary(), digits=1) + mark, rank)


def _lead(rivalry: Comparison | None) -> str:
    if rivalry is None:
        return ""
    mark = "" if rivalry.p is None else " ●" if rivalry.is_beyond_noise else " ○"
    return points(rivalry.difference, digits=1) + mark


def _rivalry(study: Study, amount: Amount) -> Comparison | None:
    """Ours against the baseline with the highest mean."""
    against = compare_headline(study, amount)
    strongest = best([found.second for found in against if found.second.is_baseline])
    return next((found for found in against if found.second is strongest), None)


def _verdicts(rivalries: Rivalries, names_scene: bool) -> Iterator[Block]:
    """Where ours wins, loses, or neither, in this order."""
    for title, is_kind in VERDICTS:
        told: dict[str, list[str]] = {}
        for (study, amount), found in rivalries.items():
            if is_kind(found):
                said = f"{short_amount(amount)} ({points(found.difference)} against {found.second.label})"
                told.setdefault(study.title if names_scene else "", []).append(said)
        if told:
            texts = [f"{scene}: {listed(amounts)}" if scene else listed(amounts) for scene, amounts in told.items()]
            count = sum(map(len, told.values()))
            yield Paragraph(f"{title} ({count} of {len(rivalries)}). {'; '.join(texts)}.", is_finding=True)


def _rivalry_figure(rivalries: Rivalries, names_scene: bool) -> Figure:
    margins, breaks, last = [], [], None
    for place, ((study, amount), found) in enumerate(rivalries.items()):
        if last not in (None, study):
            breaks.append(place)
        last = study
        name = f"{study.title}: " if names_scene else ""
        margins.append(figures.Margin(f"{name}{short_amount(amount)}", found.by_seed, found.is_beyond_noise))
    return figures.margins(margins, "ours minus the best baseline, points of overall accuracy", breaks)

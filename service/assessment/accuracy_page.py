"""The accuracy report as one HTML page."""

from __future__ import annotations

from typing import Any

from hyperscene.service.assessment.accuracy import AccuracyReport
from hyperscene.service.assessment.html_page import (
    Markup,
    heading,
    interval,
    note,
    page,
    paragraph,
    percent,
    swatch,
    table,
)


def accuracy_page(report: AccuracyReport) -> str:
    """The whole page."""
    document = report.record()
    points = document["points"]
    return page(
        f"Accuracy of {document['map']['name']}",
        [
            paragraph(f"Map checksum (classes.tif, SHA-256): {document['map']['classes_sha256']}", "muted"),
            paragraph(
                f"{points['used']} points; 'cannot tell' {points['cannot_tell']}; unanswered {points['unanswered']}."
            ),
            *accuracy_parts(document),
            heading("How it was estimated"),
            paragraph(document["estimator"]["explanation"]),
            paragraph(
                "Intervals: 95 %. Overall and user's accuracy: Wilson's interval with the effective sample size. "
                "Area and producer's accuracy: Dirichlet posterior under Perks' prior. The half widths of the "
                "textbook, 1.96 standard errors, are in the JSON document."
            ),
        ],
    )


def accuracy_parts(document: dict[str, Any]) -> list[Markup]:
    """The sections that the report of a map shows as well."""
    parts = [
        paragraph(f"Overall accuracy, in %: {interval(document['overall_accuracy'])}"),
        table(
            ["class", "mapped points", "reference points", "user's accuracy, %", "producer's accuracy, %"],
            [
                [
                    swatch(entry["name"], entry["color"]), entry["mapped_points"], entry["reference_points"],
                    interval(entry["users_accuracy"]), interval(entry["producers_accuracy"]),
                ]
                for entry in document["classes"]
            ],
        ),
        heading("Area of each class"),
        area_table(document),
        *(note(f"{entry['name']}: {remark}.") for entry in document["classes"] for remark in entry["remarks"]),
        *(note(f"{text[0].upper()}{text[1:]}.") for text in document["notes"]),
    ]  # fmt: skip
    if document["agreement"]:
        found = document["agreement"]
        kappa = "" if found["kappa"] is None else f", kappa {found['kappa']:.2f}"
        parts.append(
            paragraph(
                f"Two interpreters answered {found['points']} points alike in {percent(found['share'])} % "
                f"of the cases{kappa} ({found['first']}, {found['second']})."
            )
        )
    return [*parts, heading("Error matrix"), _matrix(document)]


def area_table(document: dict[str, Any]) -> Markup:
    """Mapped and estimated areas side by side."""
    has_area = document["classes"][0]["area_hectares"] is not None
    unit = "hectares" if has_area else "% of the map"
    rows = []
    for entry in document["classes"]:
        mapped = entry["mapped"]["hectares"] if has_area else None
        estimated = entry["area_hectares"] if has_area else entry["area_share"]
        rows.append(
            [
                swatch(entry["name"], entry["color"]), entry["mapped"]["pixels"],
                None if mapped is None else f"{mapped:,.2f}",
                interval(estimated, 1.0, 2) if has_area else interval(estimated),
            ]
        )  # fmt: skip
    return table(["class", "pixels of the map", "their hectares", f"estimated area, {unit} (95 % interval)"], rows)


def _matrix(document: dict[str, Any]) -> Markup:
    names = [entry["name"] for entry in document["classes"]]
    rows = [[name, *row, sum(row)] for name, row in zip(names, document["error_matrix"], strict=True)]
    return table(["map \\ reference", *names, "sum"], rows, "Points: classes of the map in rows, answers in columns.")

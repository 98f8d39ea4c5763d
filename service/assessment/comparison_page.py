"""The comparison of two maps as one HTML page."""

from __future__ import annotations

from typing import Any

from hyperscene.service.assessment.html_page import heading, note, page, paragraph, percent, table


def comparison_page(document: dict[str, Any]) -> str:
    """The whole page."""
    hectares = document["transition_hectares"]
    head = ["from \\ to", *document["class_names"]]
    rows = [[name, *row] for name, row in zip(document["class_names"], document["transition_pixels"], strict=True)]
    parts = [
        paragraph(
            f"{document['changed_pixels']} of {document['compared_pixels']} pixels changed "
            f"({percent(document['changed_share'], 2)} %)."
        ),
        *(note(f"{text[0].upper()}{text[1:]}.") for text in document["warnings"]),
        heading("Transitions in pixels"),
        table(head, rows, "First map in rows, second map in columns."),
    ]
    if hectares is not None:
        rows = [
            [name, *(f"{value:,.2f}" for value in row)]
            for name, row in zip(document["class_names"], hectares, strict=True)
        ]
        parts += [heading("Transitions in hectares"), table(head, rows)]
    parts += [
        heading("Maps"),
        table(
            ["", "name", "SHA-256 of classes.tif"],
            [[which, document[which]["name"], document[which]["classes_sha256"]] for which in ("first", "second")],
        ),
    ]
    return page(f"{document['first']['name']} and {document['second']['name']}", parts)

"""The report of a map: one document that a person can print and sign, as JSON and as an HTML page."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from hyperscene.errors import MapUnusable
from hyperscene.model.bundle import Manifest
from hyperscene.service.assessment.accuracy_page import accuracy_parts
from hyperscene.service.assessment.finished_map import SUMMARY, FinishedMap, file_sha256
from hyperscene.service.assessment.html_page import (
    Markup,
    facts,
    heading,
    interval,
    note,
    page,
    paragraph,
    percent,
    swatch,
    table,
)
from hyperscene.service.assessment.map_figure import map_figure

PIXEL_COUNTS = "pixel counts, not an area estimate"
ITEM, PREVIEW, ACCURACY = "item.json", "preview.png", "accuracy.json"
REPORTS = ("report.html", "report.json")


class UsedBundle(Protocol):
    """The bundle of a map, as a file or as a served model."""

    @property
    def path(self) -> Path: ...
    @property
    def manifest(self) -> Manifest: ...
    @property
    def sha256(self) -> str: ...


def make_report(
    finished: FinishedMap, accuracy: dict[str, Any] | None = None, bundle: UsedBundle | None = None
) -> dict[str, Any]:
    """The report as a document; raises MapUnusable for a folder without a summary or another map's accuracy."""
    folder, summary = finished.path.parent, finished.summary
    if not summary:
        raise MapUnusable(f"{folder} has no {SUMMARY}: give the whole folder that hyperscene classify wrote")
    if accuracy is not None and accuracy["map"]["classes_sha256"] != finished.sha256:
        raise MapUnusable(
            f"the accuracy is about another map, {accuracy['map']['name']}: make it with hyperscene assess report"
        )
    used = summary.get("bundle", {}).get("sha256")
    if bundle is not None and used is not None and bundle.sha256 != used:
        raise MapUnusable(
            f"the map was made with another bundle, {summary['bundle'].get('name')} with the checksum {used[:12]}, not "
            f"with {bundle.path.name} ({bundle.sha256[:12]}): give that one, or leave out the bundle"
        )
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name not in REPORTS)
    return {
        "title": f"Map of {finished.name}",
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "mapped": _date_of_map(folder / ITEM),
        "scene": summary["scene"],
        "crs": summary.get("crs"),
        "areas_are": PIXEL_COUNTS if accuracy is None else "estimates with 95 % intervals",
        "classes": _classes(summary, accuracy),
        "valid_pixels": summary.get("valid_pixels"),
        "no_data_pixels": summary.get("no_data_pixels"),
        "masked_pixels": summary.get("masked_pixels"),
        "mean_confidence": summary.get("mean_confidence"),
        "applicability": summary.get("applicability"),
        "accuracy": accuracy,
        "model": {**summary.get("bundle", {}), "training": _training(None if bundle is None else bundle.manifest)},
        "settings": summary.get("settings", {}),
        "engine": {name: summary.get(name) for name in ("device", "provider")},
        "warnings": summary.get("warnings", []),
        "versions": {"map": summary.get("version"), "report": version("hyperscene")},
        "sha256": {name: file_sha256(folder / name) for name in names},
    }


def read_accuracy(path: Path) -> dict[str, Any]:
    """A document of `hyperscene assess report`."""
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
        document["map"]["classes_sha256"], document["classes"], document["overall_accuracy"]["value"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MapUnusable(
            f"{path.name} is no accuracy report ({error}): give the accuracy.json of hyperscene assess report"
        ) from error
    return document


def _date_of_map(item: Path) -> str | None:
    try:
        created: str = json.loads(item.read_bytes())["properties"]["created"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return created


def _classes(summary: dict[str, Any], accuracy: dict[str, Any] | None) -> list[dict[str, Any]]:
    estimates = {} if accuracy is None else {entry["name"]: entry for entry in accuracy["classes"]}
    return [
        {
            **entry,
            "estimated_share": estimates.get(entry["name"], {}).get("area_share"),
            "estimated_hectares": estimates.get(entry["name"], {}).get("area_hectares"),
        }
        for entry in summary["classes"]
    ]


def _training(manifest: Manifest | None) -> dict[str, Any] | None:
    """What the bundle says about its labels and scores."""
    if manifest is None:
        return None
    record = manifest.training
    scores = record.get("scores") or record.get("cross_validation") or {}
    data, split = record.get("data", {}), record.get("split", {})
    return {
        "scene": data.get("scene"), "labels": data.get("labels"), "data_digest": data.get("digest"),
        "training_pixels": split.get("train"), "split": split.get("name"), "seed": record.get("seed"),
        "attention": manifest.attention, "head": manifest.head, "code_version": record.get("code_version"),
        "scores": {name: scores[name] for name in ("oa", "aa", "kappa") if name in scores},
    }  # fmt: skip


def report_page(document: dict[str, Any], finished: FinishedMap) -> str:
    """The HTML page."""
    folder = finished.path.parent
    preview = folder / PREVIEW
    parts: list[str] = [_facts(document)]
    if preview.is_file():
        parts.append(map_figure(finished, preview))
    parts += [heading("Classes and areas"), _areas(document)]
    if document["accuracy"] is None:
        parts.append(note(f"Areas are {PIXEL_COUNTS}: no sample of this map was checked (hyperscene assess)."))
    else:
        parts += [heading("Accuracy"), *accuracy_parts(document["accuracy"])]
        parts.append(paragraph(document["accuracy"]["estimator"]["explanation"], "muted"))
    parts += [heading("Where the model applies"), *_applicability(document)]
    if document["masked_pixels"]:
        parts += [heading("Masked pixels"), table(["mask", "pixels"], document["masked_pixels"].items())]
    parts += [note(f"{text[0].upper()}{text[1:]}.") for text in document["warnings"]]
    parts += [
        heading("Model and settings"),
        _model(document),
        heading("Files"),
        facts(document["sha256"].items()),
        Markup('<div class="sign"><div>Place, date</div><div>Name, signature</div></div>'),
    ]
    return page(document["title"], parts)


def _facts(document: dict[str, Any]) -> Markup:
    scene = document["scene"]
    return facts(
        [
            ("Scene", scene.get("name")),
            ("Sensor", scene.get("sensor")),
            ("Acquired", scene.get("acquired")),
            ("Size", f"{scene['rows']} x {scene['cols']} pixels, {scene['bands']} bands"),
            ("Coordinate system", document["crs"] or "none"),
            ("Mapped", document["mapped"]),
            ("Report made", document["made"]),
        ]
    )


def _areas(document: dict[str, Any]) -> Markup:
    rows = []
    for entry in document["classes"]:
        area = entry["estimated_hectares"]
        estimated = interval(area, 1.0, 2) if area else interval(entry["estimated_share"])
        hectares = entry["hectares"]
        rows.append(
            [
                swatch(entry["name"], entry["color"]), entry["pixels"], percent(entry["share"]),
                None if hectares is None else f"{hectares:,.2f}",
                *([] if document["accuracy"] is None else [estimated]),
            ]
        )  # fmt: skip
    has_hectares = document["classes"][0]["hectares"] is not None
    estimate = [] if document["accuracy"] is None else [f"estimated area, {'ha' if has_hectares else '%'} (95 %)"]
    head = ["class", "pixels", "% of pixels", f"hectares ({PIXEL_COUNTS})", *estimate]
    return table(head, rows, f"Without data: {document['no_data_pixels']} pixels.")


def _applicability(document: dict[str, Any]) -> list[Markup]:
    found = document["applicability"]
    if not found:
        return [paragraph("Not known: the bundle carries no statistics of what it learnt from.")]
    return [
        paragraph(
            f"{percent(found['inside_share'])} % of the pixels lie inside the model's area of applicability. "
            f"{found['promise']}"
        )
    ]


def _model(document: dict[str, Any]) -> Markup:
    model, training = document["model"], document["model"]["training"] or {}
    scores = ", ".join(f"{name} {value}" for name, value in training.get("scores", {}).items())
    rows: list[tuple[str, Any]] = [
        ("Model", model.get("name")),
        ("Model's SHA-256", model.get("sha256")),
        ("Trained on", training.get("scene")),
        ("Training labels", training.get("labels")),
        ("Training pixels", training.get("training_pixels")),
        ("Scores of training", scores),
        ("Digest of scene and labels", training.get("data_digest")),
        *[(f"Setting {name}", value) for name, value in document["settings"].items()],
        *[(name.capitalize(), value) for name, value in document["engine"].items()],
        *[(f"hyperscene ({name})", value) for name, value in document["versions"].items()],
    ]
    return facts(rows)

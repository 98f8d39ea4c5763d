"""Class names and colours: from the label file, from `--classes`, or generated."""

from __future__ import annotations

import colorsys
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from hyperscene.errors import LabelsUnusable

GOLDEN_ANGLE = 0.381966  # of a turn; successive hues are far apart for any number of classes


@dataclass(frozen=True)
class ClassEntry:
    """One class: its value in the label file, its name, and a colour as #rrggbb."""

    value: int
    name: str
    color: str

    @property
    def is_named(self) -> bool:
        """The class has a name besides its value."""
        return self.name != _unnamed(self.value)


@dataclass(frozen=True)
class FileLegend:
    """Class names and colours in the label file; either may be empty."""

    names: Mapping[int, str]
    colors: Mapping[int, str]
    are_names_fixed: bool = False  # the file identifies classes by name; their values were assigned here


def make_legend(values: Sequence[int], in_file: FileLegend, given: str | None) -> tuple[ClassEntry, ...]:
    """One entry for each value that occurs, in ascending order; `given` is the text of `--classes`."""
    names = dict(in_file.names)
    colors = dict(in_file.colors)
    if given is not None and in_file.are_names_fixed:
        colors |= _colors_by_name(given, names)
    elif given is not None:
        given_names, given_colors = parse_classes(given, values)
        names, colors = dict(given_names), colors | given_colors
        for value in sorted(set(names) - set(values)):
            raise LabelsUnusable(
                f"class {names[value]!r} (value {value}) of --classes has no labelled pixel: label some, or remove it"
            )
        for value in sorted(set(values) - set(names)):
            raise LabelsUnusable(f"the labels contain the value {value}, which --classes does not name: add it")
    entries = [
        ClassEntry(value, names.get(value) or _unnamed(value), colors.get(value) or distinct_color(number))
        for number, value in enumerate(values)
    ]
    seen = [entry.name for entry in entries]
    for name in seen:
        if seen.count(name) > 1:
            raise LabelsUnusable(f"two classes are called {name!r}: give them different names with --classes")
    return tuple(entries)


def _unnamed(value: int) -> str:
    return f"class {value}"


def _colors_by_name(given: str, names: Mapping[int, str]) -> dict[int, str]:
    """Colours for classes whose names come from the file; any other name is refused."""
    values = {name: value for value, name in names.items()}
    colors: dict[int, str] = {}
    for _, name, color in _parse_entries(given):
        if name not in values:
            raise LabelsUnusable(
                f"the labels' own classes are {', '.join(values)}; --classes names {name!r}: use it for their colours "
                "only, as in 'name #rrggbb', or rename the classes in the file"
            )
        colors |= {values[name]: color} if color else {}
    return colors


def parse_classes(given: str, values: Sequence[int]) -> tuple[dict[int, str], dict[int, str]]:
    """Names and colours from `roof,pavement`, `1=roof #d73027,2=pavement`, or a file with one such entry per line."""
    entries = _parse_entries(given)
    if all(value is None for value, _, _ in entries):
        entries = _numbered(entries, values)
    if any(value is None for value, _, _ in entries):
        raise LabelsUnusable("--classes gives values for some names only: write value=name for all of them or for none")
    names = {value: name for value, name, _ in entries if value is not None}
    if len(names) < len(entries):
        raise LabelsUnusable("--classes names one value twice: give every value one name")
    return names, {value: color for value, _, color in entries if value is not None and color}


Entry = tuple[int | None, str, str | None]


def _parse_entries(given: str) -> list[Entry]:
    try:
        is_file = "," not in given and "=" not in given and Path(given).is_file()
        text = Path(given).read_text(encoding="utf-8-sig") if is_file else given
    except (OSError, UnicodeDecodeError) as error:
        raise LabelsUnusable(f"--classes cannot be read ({error}): write names with commas, or a UTF-8 file") from error
    parts = [part.strip() for part in (text.splitlines() if is_file else text.split(","))]
    entries = [_parse_entry(part) for part in parts if part]
    if not entries:
        raise LabelsUnusable("--classes names no class: write names separated by commas, or a file with one per line")
    return entries


def _parse_entry(text: str) -> Entry:
    match = re.fullmatch(r"(?:(\d+)\s*=\s*)?(.*?)(?:\s+(#[0-9a-fA-F]{6}))?", text)
    assert match is not None  # the pattern takes any text
    value, name, color = match.groups()
    return (int(value) if value else None), name.strip(), color


def _numbered(entries: list[Entry], values: Sequence[int]) -> list[Entry]:
    """Plain names belong to the values that occur, in order; if there are more names, to 1, 2, 3 and so on."""
    if len(entries) == len(values):
        numbers = list(values)
    elif max(values) <= len(entries):
        numbers = list(range(1, len(entries) + 1))
    else:
        raise LabelsUnusable(
            f"--classes has {len(entries)} names for {len(values)} label values ({', '.join(map(str, values))}): "
            "give one for each, or write value=name"
        )
    return [(number, name, color) for number, (_, name, color) in zip(numbers, entries, strict=True)]


def distinct_color(number: int) -> str:
    """The colour of class `number`; consecutive numbers differ in hue and lightness."""
    red, green, blue = colorsys.hls_to_rgb((0.33 + number * GOLDEN_ANGLE) % 1, (0.42, 0.62)[number % 2], 0.65)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def read_file_legend(path: Path, dataset: Any) -> FileLegend:
    """Names and colours of a label raster: ENVI's list, GDAL's categories, a QGIS style, a colour table."""
    names: dict[int, str] = {}
    colors = _from_colormap(dataset)
    header = dataset.tags(ns="ENVI") if dataset.driver == "ENVI" else dataset.tags()
    if "class_names" in header:
        listed = header["class_names"].strip("{}").split(",")
        names = {value: name.strip() for value, name in enumerate(listed) if value > 0}
    categories = _sidecar(path.with_name(path.name + ".aux.xml"), ".//CategoryNames/Category")
    names |= {value: entry.text for value, entry in enumerate(categories) if value > 0 and entry.text}
    for entry in _sidecar(path.with_suffix(".qml"), ".//paletteEntry"):
        value, label, color = entry.get("value", ""), entry.get("label"), entry.get("color", "")
        if value.isdigit() and int(value) > 0:
            names |= {int(value): label} if label else {}
            colors |= {int(value): color} if re.fullmatch("#[0-9a-fA-F]{6}", color) else {}
    return FileLegend(names, colors)


def _sidecar(path: Path, wanted: str) -> list[ElementTree.Element]:
    """Elements of an optional XML file beside the labels; an unreadable file counts as missing."""
    try:
        return ElementTree.parse(path).findall(wanted)  # nosec B314
    except (OSError, ElementTree.ParseError):
        return []


def _from_colormap(dataset: Any) -> dict[int, str]:
    try:
        table = dataset.colormap(1)
    except ValueError:  # there is none
        return {}
    return {value: f"#{r:02x}{g:02x}{b:02x}" for value, (r, g, b, _) in table.items() if value > 0 and (r or g or b)}

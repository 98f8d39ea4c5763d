"""XML of products: no document type, so no entity and no reference to other files, and a limited size."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from hyperscene.errors import SceneUnreadable

MAX_BYTES = 64 << 20  # EnMAP's are 4 MB
MAX_DEPTH = 64
PART_BYTES = 1 << 20


def read_xml(path: Path) -> Element:
    """The root element; refuses a document type, which entities and external references need."""
    builder, depth = TreeBuilder(), 0
    parser = expat.ParserCreate(namespace_separator=None)
    parser.buffer_text = True
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)

    def refuse(*_: Any) -> None:
        raise SceneUnreadable(f"{path.name} declares a document type or entities, which are not read: remove them")

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > MAX_DEPTH:
            raise SceneUnreadable(
                f"{path.name} nests its elements deeper than {MAX_DEPTH}: it is no product's metadata"
            )
        builder.start(tag, attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(tag)

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, builder.data
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SceneUnreadable(f"{path.name} is longer than {MAX_BYTES >> 20} MB: it is no product's metadata")
        with path.open("rb") as file:
            while part := file.read(PART_BYTES):
                parser.Parse(part, False)
            parser.Parse(b"", True)
        return builder.close()
    except expat.ExpatError as error:
        raise SceneUnreadable(f"{path.name} is not well-formed XML ({error}): copy it again") from error
    except OSError as error:
        raise SceneUnreadable(f"{path.name} cannot be read ({error.strerror}): check its permissions") from error


def text_of(root: Element, path: str) -> str:
    """The text of the first element at this path; empty if there is none."""
    return (root.findtext(path) or "").strip()


def numbers_of(root: Element, path: str, name: str) -> list[float]:
    """The numbers of all elements at this path."""
    try:
        return [float(element.text or "") for element in root.findall(path)]
    except ValueError as error:
        raise SceneUnreadable(f"{path} of {name} is not a number ({error}): copy the product again") from error

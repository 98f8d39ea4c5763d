"""Metadata, signature and structure of an .onnx file, read from its protobuf fields without an engine.

An engine may not work on this machine, and starting one takes longer than reading a few lines of text.
Field numbers are those of onnx.proto (ONNX IR version 3 and later).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MODEL_GRAPH, MODEL_METADATA = 7, 14
GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT = 5, 11, 12
ENTRY_KEY, ENTRY_VALUE = 1, 2
VALUE_NAME, VALUE_TYPE = 1, 2
TYPE_TENSOR, TENSOR_ELEMENT, TENSOR_SHAPE, SHAPE_DIMENSION, DIMENSION_SIZE = 1, 1, 2, 1, 1

GRAPH_NODE = 1
NODE_INPUT, NODE_OPERATOR = 1, 4
TENSOR_DIMENSIONS, TENSOR_TYPE, TENSOR_NAME, TENSOR_RAW_DATA = 1, 2, 8, 9
TENSOR_EXTERNAL_DATA, TENSOR_DATA_LOCATION = 13, 14
# The fields of each message that may hold tensors, with the kind of message inside.
TENSORS_IN: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
}
DEEPEST = 32  # graphs within graphs, in messages
SMALL_BYTES = 64  # an initializer up to this size is a parameter of an operator, such as a shape

FLOAT32, INT64 = 1, 7  # of TensorProto.DataType

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # protobuf's wire types
LONGEST_VARINT = 10


Array = NDArray[np.float32]


class NotOnnx(ValueError):
    """The bytes are not a protobuf message of this form."""


@dataclass(frozen=True)
class Tensor:
    """An input or output of a graph."""

    element: int  # of TensorProto.DataType
    shape: tuple[int | None, ...]  # None where a dimension may vary


@dataclass(frozen=True)
class OnnxFile:
    """A file's metadata and signature."""

    metadata: dict[str, str]
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    structure: str  # a digest of operators and shapes, without weights: networks that differ in weights only share it


def read_onnx(content: bytes) -> OnnxFile:
    """Read metadata, signature and structure; raises NotOnnx."""
    metadata: dict[str, str] = {}
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    structure = hashlib.sha256()
    has_graph = False
    for number, value in _fields(memoryview(content)):
        if number == MODEL_METADATA:
            entry = dict(_fields(_message(value)))
            metadata[_text(entry.get(ENTRY_KEY, b""))] = _text(entry.get(ENTRY_VALUE, b""))
        elif number == MODEL_GRAPH:
            has_graph = True
            for part, described in _fields(_message(value)):
                _add_structure(structure, part, described)
                if part in (GRAPH_INPUT, GRAPH_OUTPUT):
                    name, tensor = _tensor(_message(described))
                    (inputs if part == GRAPH_INPUT else outputs)[name] = tensor
    if not has_graph:
        raise NotOnnx("it has no graph")
    return OnnxFile(metadata, inputs, outputs, structure.hexdigest())


def read_weights(content: bytes) -> tuple[dict[str, Array], dict[str, list[list[str]]]]:
    """The float32 initializers by name, and the names of each operator's inputs, by kind in the graph's order."""
    named: dict[str, Array] = {}
    operators: dict[str, list[list[str]]] = {}
    for number, graph in _fields(memoryview(content)):
        if number != MODEL_GRAPH:
            continue
        for part, value in _fields(_message(graph)):
            if part == GRAPH_INITIALIZER:
                _add_weight(named, _message(value))
            elif part == GRAPH_NODE:
                fields = list(_fields(_message(value)))
                inputs = [_text(field) for number, field in fields if number == NODE_INPUT]
                kind = next((_text(field) for number, field in fields if number == NODE_OPERATOR), "")
                operators.setdefault(kind, []).append(inputs)
    return named, operators


def _add_weight(named: dict[str, Array], tensor: memoryview) -> None:
    """Add an initializer if it is float32, stored as raw bytes."""
    fields = list(_fields(tensor))
    found = dict(fields)
    if found.get(TENSOR_TYPE) != FLOAT32 or TENSOR_RAW_DATA not in found:
        return
    shape = [value for number, field in fields if number == TENSOR_DIMENSIONS for value in _integers(field)]
    values = np.frombuffer(_message(found[TENSOR_RAW_DATA]), "<f4")
    if values.size != math.prod(shape):
        raise NotOnnx("an initializer is cut short")
    named[_text(found.get(TENSOR_NAME, b""))] = values.reshape(shape)


def _integers(value: Field) -> Iterator[int]:
    """A repeated integer's values: one, or several that are packed."""
    if isinstance(value, int):
        yield value
        return
    position, packed = 0, memoryview(value)
    while position < len(packed):
        number, position = _varint(packed, position)
        yield number


def has_external_data(content: bytes) -> bool:
    """Whether a tensor of the file is in another file, which an engine would read."""
    return _refers_elsewhere(memoryview(content), "model", DEEPEST)


def _refers_elsewhere(message: memoryview, kind: str, depth: int) -> bool:
    if depth == 0:
        raise NotOnnx("it is nested too deeply")
    if kind == "tensor":
        return any(
            number == TENSOR_EXTERNAL_DATA or (number == TENSOR_DATA_LOCATION and value != 0)
            for number, value in _fields(message)
        )
    inside = TENSORS_IN[kind]
    return any(
        _refers_elsewhere(_message(value), inside[number], depth - 1)
        for number, value in _fields(message)
        if number in inside
    )


def _add_structure(structure: hashlib._Hash, number: int, value: Field) -> None:
    """Add a field of the graph to the digest, without the data of large initializers."""
    if number != GRAPH_INITIALIZER:
        _add_field(structure, number, value)
        return
    for part, field in _fields(_message(value)):
        if part != TENSOR_RAW_DATA or len(_message(field)) <= SMALL_BYTES:
            _add_field(structure, part, field)


def _add_field(structure: hashlib._Hash, number: int, value: Field) -> None:
    structure.update(b"%d:" % number)
    structure.update(b"%d" % value if isinstance(value, int) else value)


def _tensor(value_info: memoryview) -> tuple[str, Tensor]:
    info = dict(_fields(value_info))
    kind = dict(_fields(_message(info.get(VALUE_TYPE, b""))))
    tensor = dict(_fields(_message(kind.get(TYPE_TENSOR, b""))))
    shape: list[int | None] = []
    for number, dimension in _fields(_message(tensor.get(TENSOR_SHAPE, b""))):
        if number == SHAPE_DIMENSION:
            size = dict(_fields(_message(dimension))).get(DIMENSION_SIZE)
            shape.append(size if isinstance(size, int) else None)
    element = tensor.get(TENSOR_ELEMENT, 0)
    return _text(info.get(VALUE_NAME, b"")), Tensor(element if isinstance(element, int) else 0, tuple(shape))


Field = int | memoryview | bytes


def _fields(message: memoryview) -> Iterator[tuple[int, Field]]:
    """Field numbers and values of a message: integers, or bytes for everything else."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise NotOnnx("a field has no number")
        if wire == VARINT:
            value, position = _varint(message, position)
            yield number, value
            continue
        if wire == BYTES:
            size, position = _varint(message, position)
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise NotOnnx(f"wire type {wire} is unknown")
        if position + size > len(message):
            raise NotOnnx("it is cut short")
        yield number, message[position : position + size]
        position += size


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(LONGEST_VARINT):
        if position >= len(message):
            raise NotOnnx("it is cut short")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, position
    raise NotOnnx("a varint is too long")


def _message(value: Field) -> memoryview:
    if isinstance(value, int):
        raise NotOnnx("a message was expected")
    return memoryview(value)


def _text(value: Field) -> str:
    try:
        return bytes(_message(value)).decode()
    except UnicodeDecodeError as error:
        raise NotOnnx("a text is not UTF-8") from error

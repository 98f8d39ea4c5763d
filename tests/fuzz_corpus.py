"""Hostile requests for tests/fuzz.py: the seeds, one for each past finding, and generators that know the formats."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import onnx
from onnx import helper

from hyperscene.model.bundle import MANIFEST_KEY, NO_DIGEST, sealed
from tests.bundles import describe, patch_graph, pixel_graph
from tests.scenes import WAVELENGTH_LINE, WAVELENGTHS
from tests.uploads import ASCII, BOUNDARY, LONG, SHORT, form_body, form_part, wavelength_tags


def words(text: str) -> tuple[str, ...]:
    """A list that is shorter to write as a text."""
    return tuple(text.split())


KEY, OTHER_KEY = "fuzz-key", "other-key"
DOUBLE = 12
PACKED = {1: "B", 2: "B", SHORT: "H", LONG: "I", 6: "b", 7: "B", 8: "h", 9: "i", 11: "f", DOUBLE: "d", 16: "Q"}
SCALE, TIEPOINT, MATRIX, GEO_KEYS, GEO_DOUBLES, GEO_TEXT, METADATA, NODATA = (
    33550, 33922, 34264, 34735, 34736, 34737, 42112, 42113,
)  # fmt: skip
ASYNC = {"Prefer": "respond-async"}
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
EXECUTION = "/processes/classify-scene/execution"
NUMBERS = (0, 1, -1, 2, 7, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**64 - 1)
REALS = (0.0, -0.0, 1e-320, 1e-160, 1.0, 30.0, -30.0, 180.0, 1e9, 1e37, 1e160, 1e200, 1e300, -1e300, 1.7e308,
         float("inf"), float("-inf"), float("nan"))  # fmt: skip
TEXTS = (
    *words("""0 -1 1e309 nan inf null true ' " %00 /etc/passwd file:///etc/passwd http://127.0.0.1/ ${jndi:x} ';--"""),
    *("", " ", "\x00", "\u202e", "\ud800", "../" * 8, "é" * 50, "a" * 5000, "{" * 3000, "[" * 3000, "1" * 5000),
    "\r\nX-Injected: 1",
)


@dataclass(frozen=True)
class HostileRequest:
    """A request as it is sent; {scene} and others in the target and the body stand for what exists."""

    kind: str
    method: str
    target: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None

    def saved(self) -> bytes:
        """The request for a file: a line of JSON, then the body."""
        return json.dumps([self.kind, self.method, self.target, self.headers]).encode() + b"\n" + (self.body or b"")

    @staticmethod
    def loaded(content: bytes) -> HostileRequest:
        """A request that was saved."""
        head, _, body = content.partition(b"\n")
        return HostileRequest(*json.loads(head), body or None)

    def raw(self, existing: dict[str, str]) -> bytes:
        """The bytes on the connection."""
        target, body = self.target, self.body
        for name, value in existing.items():
            target = target.replace(f"{{{name}}}", value)
            body = None if body is None else body.replace(f"{{{name}}}".encode(), value.encode())
        headers = {"Host": "localhost", "X-API-Key": KEY}
        if body is not None:
            headers["Content-Length"] = str(len(body))
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers | self.headers).items() if value is not None)
        head = f"{self.method} {target} HTTP/1.1\r\n{lines}\r\n"
        return head.encode("utf-8", "surrogatepass") + (body or b"")


# TIFF


@dataclass
class Tiff:
    """A TIFF to write: directories of tags with their types and values, and its blocks."""

    directories: list[dict[int, tuple[int, list | bytes]]]
    data: bytes = b""
    order: str = "<"
    is_big: bool = False
    counts: dict[int, int] = field(default_factory=dict)  # that the entry of a tag claims
    words: dict[int, int] = field(default_factory=dict)  # that an entry has instead of a value or an offset
    repeats: dict[int, int] = field(default_factory=dict)  # how often a tag is entered
    next_directory: int = 0

    def content(self) -> bytes:
        """The file; data comes first, so that its offset is known."""
        magic = b"II" if self.order == "<" else b"MM"
        word, count = ("Q", "Q") if self.is_big else ("I", "H")
        head_bytes = 16 if self.is_big else 8
        body, firsts = bytearray(self.data), []
        for directory in self.directories:
            entries = bytearray()
            for tag, (kind, values) in sorted(directory.items()):
                packed = pack(self.order, kind, values)
                claimed = self.counts.get(tag, len(values))
                if len(packed) > struct.calcsize(word):
                    where = struct.pack(self.order + word, head_bytes + len(body))
                    body += packed + b"\0" * (len(packed) % 2)
                else:
                    where = packed.ljust(struct.calcsize(word), b"\0")
                if tag in self.words:
                    where = struct.pack(self.order + word, self.words[tag] % 2 ** (8 * struct.calcsize(word)))
                claimed %= 2 ** (8 * struct.calcsize(word))
                entry = struct.pack(self.order + "HH" + word, tag, kind, claimed) + where
                entries += entry * self.repeats.get(tag, 1)
            firsts.append(head_bytes + len(body))
            entry_count = len(entries) // (20 if self.is_big else 12) % 2**16
            body += struct.pack(self.order + count, entry_count) + entries
            body += struct.pack(self.order + word, self.next_directory)
        version = struct.pack(self.order + "HHH", 43, 8, 0) if self.is_big else struct.pack(self.order + "H", 42)
        return magic + version + struct.pack(self.order + word, firsts[0]) + bytes(body)


def pack(order: str, kind: int, values: list | bytes) -> bytes:
    """Values of a tag in its type; those that it cannot hold are cut, or 0."""
    if isinstance(values, bytes):
        return values
    code = PACKED.get(kind, "H")
    if code in "fd":
        limit = 3e38 if code == "f" else float("inf")
        return struct.pack(f"{order}{len(values)}{code}", *[0.0 if limit < abs(v) < math.inf else v for v in values])
    size = struct.calcsize(code)
    whole = [int(value) % 2 ** (8 * size) if math.isfinite(value) else 0 for value in values]
    return b"".join(value.to_bytes(size, "little" if order == "<" else "big") for value in whole)


def sound_tiff(rows: int = 20, cols: int = 16, bands: int = 5, *, data: bool = True, **changes: object) -> Tiff:
    """A mapped, georeferenced TIFF of bytes, band after band in one strip each; without data, a sparse one."""
    strip = rows * cols
    tags: dict[int, tuple[int, list | bytes]] = {
        256: (LONG, [cols]), 257: (LONG, [rows]), 258: (SHORT, [8] * bands), 259: (SHORT, [1]), 262: (SHORT, [1]),
        273: (LONG, [8 + band * strip if data else 0 for band in range(bands)]), 277: (SHORT, [bands]),
        278: (LONG, [rows]), 279: (LONG, [strip if data else 0] * bands), 284: (SHORT, [2]),
        SCALE: (DOUBLE, [30.0, 30.0, 0.0]), TIEPOINT: (DOUBLE, [0.0, 0.0, 0.0, 380_000.0, 5_820_000.0, 0.0]),
        GEO_KEYS: (SHORT, [1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32633]),
        METADATA: (ASCII, wavelength_tags(WAVELENGTHS[:bands]) + b"\0"),
    }  # fmt: skip
    pixels = bytes((7 * number) % 251 for number in range(strip * bands)) if data else b""
    return Tiff([tags | changes.pop("tags", {})], pixels, **changes)


def sparse_tiff(rows: int, cols: int, bands: int) -> bytes:
    """Tiles without data."""
    tiff = sound_tiff(1, 1, 5, data=False)
    tags = tiff.directories[0]
    tiles = -(-rows // 4096) * -(-cols // 4096) * bands
    for tag in (273, 278, 279):
        del tags[tag]
    tags |= {256: (LONG, [cols]), 257: (LONG, [rows]), 258: (SHORT, [8] * bands), 277: (SHORT, [bands]),
             322: (SHORT, [4096]), 323: (SHORT, [4096]), 324: (LONG, [0] * tiles), 325: (LONG, [0] * tiles),
             METADATA: (ASCII, wavelength_tags(range(450, 450 + 7 * bands, 7)) + b"\0")}  # fmt: skip
    return tiff.content()


def directory_bomb(entries: int, list_bytes: int) -> bytes:
    """Many entries of one tag that all point to one list."""
    tiff = sound_tiff(repeats={257: entries})
    tiff.directories[0][257] = (LONG, [20] * (list_bytes // 4))
    return tiff.content()


def hostile_tiff(rng: random.Random) -> bytes:
    """A sound TIFF with one to four things wrong."""
    tiff = sound_tiff(rng.choice((1, 5, 20)), rng.choice((1, 16, 33)), rng.choice((1, 4, 5, 5, 5, 6)))
    tiff.order, tiff.is_big = rng.choice("<<<>"), rng.random() < 0.2
    if tiff.is_big:
        offsets = tiff.directories[0][273][1]
        tiff.directories[0][273] = (16, [offset + 8 for offset in offsets])
    for _ in range(rng.randint(1, 4)):
        rng.choice(
            (_change_tag, _change_tag, _change_georeference, _change_georeference, _change_text, _lie, _directories)
        )(rng, tiff)
    content = tiff.content()
    return _mutated(rng, content) if rng.random() < 0.2 else content


def _change_tag(rng: random.Random, tiff: Tiff) -> None:
    tags = tiff.directories[0]
    tag = rng.choice(
        [*tags, 254, 259, 266, 274, 317, 320, 322, 323, 324, 325, 330, 338, 339, 340, 341, 347, 532, 34377, 37724]
    )
    kind, values = tags.get(tag, (SHORT, [1]))
    match rng.randrange(5):
        case 0 if tag in tags:
            del tags[tag]
        case 1:
            tags[tag] = (rng.choice(list(PACKED)), values)
        case 2:
            tags[tag] = (kind, [rng.choice(NUMBERS)] * len(values))
        case 3:
            tags[tag] = (kind, (list(values) * rng.choice((0, 2, 100)))[:20_000])
        case _:
            small = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 32773, 34712, 34887, 50000, 50001)
            tags[tag] = (SHORT, [rng.choice(small)] * max(1, len(values)))


def _change_georeference(rng: random.Random, tiff: Tiff) -> None:
    tags = tiff.directories[0]
    match rng.randrange(5):
        case 0:
            tags[SCALE] = (DOUBLE, [rng.choice(REALS) for _ in range(rng.choice((0, 1, 2, 3, 3, 3, 9)))])
        case 1:
            points = rng.choice((0, 1, 1, 1, 4, 5000))
            tags[TIEPOINT] = (DOUBLE, [rng.choice(REALS) for _ in range(6 * points + rng.choice((0, 0, 1)))])
        case 2:
            tags.pop(SCALE, None)
            tags[MATRIX] = (DOUBLE, [rng.choice(REALS) for _ in range(rng.choice((0, 4, 16, 16, 16)))])
        case 3:
            keys = [
                rng.choice((1, 3, 1024, 1025, 2048, 2050, 3072, 3076, 32633, 32767, 4326, rng.randrange(65536)))
                for _ in range(16)
            ]
            tags[GEO_KEYS] = (SHORT, [1, 1, 0, rng.choice((3, 0, 65535)), *keys])
        case _:
            tags[GEO_TEXT] = (
                ASCII,
                rng.choice((b"", b"|" * 3000, b"GEOGCS[" * 2000, b'PROJCS["x"|', b"+proj=tmerc|")) + b"\0",
            )
            tags[GEO_DOUBLES] = (DOUBLE, [rng.choice(REALS) for _ in range(8)])


def _change_text(rng: random.Random, tiff: Tiff) -> None:
    tags = tiff.directories[0]
    if rng.random() < 0.3:
        tags[NODATA] = (ASCII, rng.choice(TEXTS).encode("utf-8", "replace") + b"\0")
        return
    value, many = rng.choice([*TEXTS, "450", "0.45", "-5", "1e300"]), rng.choice((1, 5, 300))
    name, sample = rng.choice(("wavelength", "fwhm", "scale", "bbl", "x" * 3000)), rng.choice((0, 4, -1, 10**9))
    item = f'<Item name="{name}" sample="{sample}"'
    role = rng.choice(("", ' role="scale"', ' role="offset"', ' role="description"', ' domain="IMAGERY"'))
    text = rng.choice(
        (
            "<GDALMetadata>" + f"{item}{role}>{value}</Item>" * many + "</GDALMetadata>",
            "<GDALMetadata>" + "<Item>" * 5000,
            "<a>" * 20_000,
            "<!DOCTYPE a [<!ENTITY b 'b'>]><GDALMetadata>&b;</GDALMetadata>",
            '<GDALMetadata><Item name="x" domain="xml:VRT" format="xml"><VRTDataset/></Item></GDALMetadata>',
        )
    )
    tags[METADATA] = (ASCII, text.encode("utf-8", "replace") + b"\0")


def _lie(rng: random.Random, tiff: Tiff) -> None:
    tag = rng.choice(list(tiff.directories[0]))
    match rng.randrange(3):
        case 0:
            tiff.counts[tag] = rng.choice(NUMBERS)
        case 1:
            tiff.words[tag] = rng.choice((*NUMBERS, 8, 9, rng.randrange(4000)))
        case _:
            tiff.repeats[tag] = rng.choice((2, 3, 50))


def _directories(rng: random.Random, tiff: Tiff) -> None:
    tiff.next_directory = rng.choice((8, 1, rng.randrange(3000), 2**32 - 1))
    tiff.directories *= rng.choice((1, 2, 20))


def _mutated(rng: random.Random, content: bytes) -> bytes:
    """Some bytes changed, removed, repeated, or the end cut off."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 6)):
        where = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[where : where + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[where : where + rng.choice((1, 4, 100))]
            case 2:
                data[where:where] = data[max(0, where - 50) : where] * rng.choice((1, 20))
            case _:
                del data[rng.randrange(len(data) // 2, len(data) + 1) :]
    return bytes(data)


# ENVI


ENVI_FIELDS = {
    "samples": "16", "lines": "20", "bands": "5", "header offset": "0", "file type": "ENVI Standard", "data type": "1",
    "interleave": "bsq", "byte order": "0",
    "map info": "{UTM, 1, 1, 380000, 5820000, 30, 30, 33, North, WGS-84, units=Meters}",
}  # fmt: skip
ENVI_MORE = ("bbl", "data ignore value", "reflectance scale factor", "data gain values", "data offset values", "fwhm",
             "band names", "coordinate system string", "file compression", "geo points", "default bands", "x start",
             "wavelength units", "wavelength", "pixel size", "sensor type")  # fmt: skip


def envi_header(changes: dict[str, str] | None = None) -> str:
    """A header with some fields changed."""
    fields = ENVI_FIELDS | (changes or {})
    return "ENVI\n" + "".join(f"{name} = {value}\n" for name, value in fields.items()) + WAVELENGTH_LINE


def hostile_envi(rng: random.Random) -> bytes:
    """A form with header and data, of which something is wrong."""
    changes = {}
    for _ in range(rng.randint(1, 3)):
        numbers = ", ".join(str(rng.choice((*NUMBERS, *REALS))) for _ in range(rng.choice((0, 1, 5, 500))))
        values = (
            str(rng.choice(NUMBERS)),
            rng.choice(TEXTS),
            "{" + numbers + "}",
            f"{{UTM, {numbers}}}",
            "bil",
            "{" * 4000,
        )
        changes[rng.choice([*ENVI_FIELDS, *ENVI_MORE])] = rng.choice(values)
    text = envi_header(changes)
    if rng.random() < 0.15:
        text = text[: rng.randrange(len(text))] + "\n" * rng.choice((0, 5000))
    header = text.encode("utf-8", "replace")
    data = bytes(rng.choice((1600, 1600, 1599, 0, 40_000)))
    names = rng.choice(
        (("a.img", "a.hdr"), ("a", "a.hdr"), ("a.bsq", "a.img.hdr"), ("../a", "/etc/a.hdr"), ("a.hdr", "a.img"))
    )
    parts = [form_part(data, names[0]), form_part(header, names[1])]
    rng.shuffle(parts)
    return form_body(*parts)


# Other bodies


def hostile_form(rng: random.Random) -> tuple[dict[str, str], bytes]:
    """Headers and a body of a form whose structure is wrong."""
    scene = sound_tiff().content()
    options = ("model", "stride_px", "blend", "probability_type", "scene", "", "x" * 300)
    parts = [form_part(scene)] * rng.choice((0, 1, 1, 1, 2, 20))
    for _ in range(rng.randint(0, 3)):
        text = rng.choice((*TEXTS, "4", "angle", "float32")).encode("utf-8", "replace")
        name = rng.choice(("", "", "a.txt", "a\\b", "x" * 1000))
        parts.append(
            form_part(
                text, name, field=rng.choice(options), headers=rng.choice(("", "Content-Type: x\r\n", "A: \x01\r\n"))
            )
        )
    body = form_body(*parts)
    boundary = rng.choice((BOUNDARY, BOUNDARY, BOUNDARY, "", '"' + BOUNDARY + '"', "x" * 200, BOUNDARY + "; charset=x"))
    return {"Content-Type": f"multipart/form-data; boundary={boundary}"}, _mutated(
        rng, body
    ) if rng.random() < 0.4 else body


def hostile_value(rng: random.Random, depth: int = 0) -> object:
    """A JSON value that is not what is expected."""
    match rng.randrange(8 if depth < 3 else 5):
        case 0:
            return rng.choice(NUMBERS) * rng.choice((1, -1, 10**30))
        case 1:
            return rng.choice(REALS)
        case 2 | 3:
            return rng.choice(TEXTS)
        case 4:
            return rng.choice((None, True, False, [], {}))
        case 5:
            return [hostile_value(rng, depth + 1) for _ in range(rng.choice((1, 3, 100)) if depth == 0 else 2)]
        case _:
            names = (
                "inputs",
                "scene",
                "href",
                "value",
                "outputs",
                "classes",
                "transmissionMode",
                "response",
                rng.choice(TEXTS),
            )
            return {rng.choice(names): hostile_value(rng, depth + 1) for _ in range(3)}


def hostile_execution(rng: random.Random) -> bytes:
    """The body of an execute request with a part replaced, or broken."""
    body: dict = {
        "inputs": {"scene": {"href": "/scenes/{scene}"}, "stride_px": 4, "blend": "angle"},
        "outputs": {"classes": {"transmissionMode": "value"}},
        "response": "document",
    }
    for _ in range(rng.randint(1, 2)):
        place = rng.choice((body, body["inputs"] if isinstance(body.get("inputs"), dict) else body))
        name = rng.choice([*place, "model", "probability_type", "subscriber"])
        place[name] = {"href": rng.choice(HREFS)} if name == "scene" and rng.random() < 0.5 else hostile_value(rng)
    content = json.dumps(body, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    return _mutated(rng, content) if rng.random() < 0.3 else content


# {host} is an allowed host that serves some files, {forbidden} one that must never be asked; all are on this machine.
HREFS = (
    *words("""
    {host}sound.tif {host}short.tif {host}vrt.tif {host}missing.tif {host}away.tif {host}../sound.tif {host} {host}a%00
    {host}%2e%2e/sound.tif {host}sound.tif?x=1 {host}sound.tif#x {forbidden}sound.tif http://127.0.0.1:1/a.tif
    http://[::1 http://0/ http://127.0.0.2/latest https://user@127.0.0.1/ s3://bucket/a.tif s3:/// ftp://127.0.0.1/b
    file:///etc/passwd /vsicurl/{forbidden}sound.tif /vsizip//etc/a gopher://127.0.0.1 javascript:1 /scenes/
    /scenes/../x /scenes/{scene}/ //{scene} /scenes/{scene}?x
    """),
    *("\x00", "", "http://" + "a" * 3000),
)


def hostile_href(rng: random.Random) -> bytes:
    """The body of a scene by reference."""
    href = rng.choice(HREFS)
    if rng.random() < 0.3:
        where = rng.randrange(len(href) + 1)
        href = (
            href[:where]
            + rng.choice(("\\", "@", "%00", "%2f", " ", "\t", "..", "\u2025", ":", "?", "#"))
            + href[where:]
        )
    return json.dumps({"href": href}).encode("utf-8", "surrogatepass")


GETS = words("""
/ /api /conformance /processes /processes/classify-scene /models /models/pixel /models/pixel/bundle.onnx /health /readyz
/metrics /jobs /jobs/{job} /jobs/{job}/results /jobs/{job}/results/classes.tif /jobs/{job}/results/summary.json
/jobs/{job}/results/preview.png /jobs/{job}/tilejson.json /jobs/{job}/pixel?row=1&col=2 /scenes/{scene} /page/main.js
/jobs/{job}/tiles/classes/0/0/0.png /jobs/{job}/tiles/scene/0/0/0.png?bands=1,2,3 /jobs/{job}/tiles/scene/0/0/0@2x.png
/page/leaflet/leaflet.js
""")
PARAMETERS = words("limit offset datetime status type processID minDuration maxDuration layer bands row col lon lat f")
VALUES = words("""
1,2,3 5,4,3 1,1,1 0,0,0 999,1,1 classes scene probability-1 2026-01-01T00:00:00Z/.. ../.. 9999-12-31T23:59:59Z
0000-01-01 running accepted,failed 1e400 -180.5
""")


def hostile_query(rng: random.Random) -> str:
    """A path with strange parts and parameters."""
    path = rng.choice(GETS)
    if rng.random() < 0.5:
        parts = path.split("/")
        part = rng.choice((str(rng.choice(NUMBERS)), str(-rng.choice(NUMBERS)), *TEXTS))
        parts[rng.randrange(1, len(parts))] = quote(part, safe=rng.choice(("", "/%"))[:4], errors="replace")[:4000]
        path = "/".join(parts)
    chosen = [
        (rng.choice(PARAMETERS), rng.choice((*VALUES, *TEXTS, str(rng.choice(NUMBERS)))))
        for _ in range(rng.choice((0, 1, 1, 2, 5)))
    ]
    query = "&".join(f"{name}={quote(value, safe=',/:', errors='replace')}" for name, value in chosen)
    return (path + ("&" if "?" in path else "?") + query if query else path)[:60_000]


HEADERS = """
Range: bytes=0-10
Range: bytes=-5
Range: bytes=10-5
Range: bytes=0-99999999999999999999
If-Range: Wed, 21 Oct 2015 07:28:00 GMT
If-None-Match: *
If-None-Match: "x"
Accept: text/html
Accept: application/zip
Accept: text/html;q=1e400, */*;q=x
Prefer: respond-async, wait=1
Idempotency-Key: a
X-API-Key: other-key
Authorization: Bearer fuzz-key
Authorization: Basic eDp4
X-Request-ID: a b
X-Forwarded-Proto: javascript
X-Forwarded-For: 127.0.0.1
Last-Event-ID: -1
Host: evil.example
Host: [::1
Host: localhost:99999
Host: a"><b
Content-Type: application/json; charset=utf-16
Content-Type: multipart/form-data
Content-Length: 0
Content-Length: -1
Content-Length: 5, 6
Transfer-Encoding: chunked
Transfer-Encoding: gzip, chunked
Expect: 100-continue
Content-Disposition: attachment; filename="../../x"
Content-Disposition: filename*=utf-8''%ff
Origin: null
Connection: upgrade
Upgrade: h2c
Upgrade: websocket
Cookie: a=b
"""
HEADER_LINES = [tuple(line.split(": ", 1)) for line in HEADERS.strip().splitlines()]
ODD_VALUES = ("", "é", "\x7f", "x" * 4000, "," * 1000, ";" * 500, "0-1," * 500)


def hostile_headers(rng: random.Random) -> dict[str, str]:
    """Some unusual headers."""
    chosen = rng.sample(HEADER_LINES, rng.randint(1, 3))
    return {name: rng.choice(ODD_VALUES) if rng.random() < 0.3 else value for name, value in chosen}


# Bundles


def hostile_bundle(rng: random.Random) -> bytes:
    """An ONNX file whose manifest or graph does not hold what it promises."""
    graph = rng.choice((pixel_graph, patch_graph))()
    manifest = (
        json.loads(describe(graph, 5, 3).model_dump_json()) if rng.random() < 0.9 and len(graph.graph.node) == 3 else {}
    )
    for _ in range(rng.randint(0, 2)):
        if manifest:
            manifest[rng.choice(list(manifest))] = hostile_value(rng)
    text = json.dumps(manifest)
    if rng.random() < 0.1:
        text = rng.choice(TEXTS) or "x"
    if rng.random() < 0.3:
        node = rng.choice(list(graph.graph.node))
        node.op_type = rng.choice(
            ("Loop", "Tile", "Resize", "ConstantOfShape", "Identity", "NoSuchOperator", "Softmax")
        )
    helper.set_model_props(graph, {MANIFEST_KEY: text.encode("utf-8", "replace").decode()})
    content = graph.SerializeToString()
    if rng.random() < 0.7 and NO_DIGEST in text:
        content = sealed(content)
    return _mutated(rng, content) if rng.random() < 0.3 else content


def bundle_with(manifest: str) -> bytes:
    """A bundle with a manifest that is just a text."""
    graph = pixel_graph()
    helper.set_model_props(graph, {MANIFEST_KEY: manifest})
    return graph.SerializeToString()


def external_bundle(path: Path) -> bytes:
    """A bundle whose weights lie in another file of the machine."""
    graph = pixel_graph()
    helper.set_model_props(graph, {MANIFEST_KEY: describe(graph).model_dump_json()})
    tensor = graph.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", str(path)), ("offset", "0"), ("length", "60")):
        tensor.external_data.add(key=key, value=value)
    return sealed(graph.SerializeToString())


# All


def tiff_request(content: bytes, target: str = "/scenes", kind: str = "tiff") -> HostileRequest:
    """An upload of one file."""
    if target == "/scenes":
        return HostileRequest(kind, "POST", target, {"Content-Type": "image/tiff"}, content)
    return HostileRequest(kind, "POST", target, FORM | ASYNC, form_body(form_part(content)))


def seeds() -> list[HostileRequest]:
    """Requests that were answered wrongly once, or that are hostile in a known way."""
    found = []
    for scale in (1e160, 1e200, 1e300, -1e300, 1.7e308):
        huge = {"tags": {SCALE: (DOUBLE, [scale, scale, 0.0])}}
        far = {"tags": {TIEPOINT: (DOUBLE, [0.0, 0.0, 0.0, scale, scale, 0.0])}}
        matrix = {"tags": {MATRIX: (DOUBLE, [scale] * 16)}}
        scenes = [sound_tiff(**changes) for changes in (huge, far, matrix)]
        del scenes[2].directories[0][SCALE]
        found += [tiff_request(scene.content(), target) for scene in scenes for target in ("/scenes", "/classify")]
    for value in (float("nan"), float("inf"), 1e300):  # ground control points, which are used when tiles are drawn
        scene = sound_tiff(tags={TIEPOINT: (DOUBLE, [value, 1.0, 0.0, 2.0, value, 0.0] * 4)})
        del scene.directories[0][SCALE]
        found.append(tiff_request(scene.content(), "/classify"))
        found += [HostileRequest("query", "GET", target) for target in GETS if target.startswith("/jobs/{job}/")]
    found.append(tiff_request(directory_bomb(4000, 1_000_000)))
    found += [tiff_request(sparse_tiff(*shape), target) for shape in ((31_000, 31_000, 64), (100, 500_000, 5))
              for target in ("/scenes", "/classify")]  # fmt: skip
    for text in (b"<GDALMetadata>" + b"<Item>" * 100_000, b"<a>" * 30_000 + b"</a>" * 30_000):
        found.append(tiff_request(sound_tiff(tags={METADATA: (ASCII, text + b"\0")}).content()))
    found.append(tiff_request(sound_tiff(tags={GEO_TEXT: (ASCII, b"GEOGCS[" * 20_000 + b"\0")}).content()))
    vrt = (
        b"<VRTDataset rasterXSize='1' rasterYSize='1'><VRTRasterBand band='1'><SimpleSource><SourceFilename>/etc/passwd"
    )
    found += [tiff_request(vrt, target) for target in ("/scenes", "/classify")]
    for value in ("{" * 100_000, "{" + "1," * 100_000 + "}", "1e300", "nan"):
        for name in ("wavelength", "map info", "data gain values", "description"):
            form = form_body(form_part(bytes(1600), "a.img"), form_part(envi_header({name: value}).encode(), "a.hdr"))
            found.append(HostileRequest("envi", "POST", "/scenes", FORM, form))
    for body in (
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"inputs": {"scene": {"href": NaN}}}',
        b"\xff\xfe",
        b'"\\ud800"',
        b"1" * 100_000,
    ):
        found += [
            HostileRequest("json", "POST", target, {"Content-Type": "application/json"}, body)
            for target in ("/scenes", EXECUTION)
        ]
    for href in HREFS:
        found.append(
            HostileRequest(
                "href", "POST", "/scenes", {"Content-Type": "application/json"}, json.dumps({"href": href}).encode()
            )
        )
    for target in ("/jobs/{job}/results/classes.tif", "/"):
        found += [HostileRequest("headers", "GET", target, {name: value}) for name, value in HEADER_LINES]
    manifests = ("", "[" * 100_000, '{"training":' * 50_000, "NaN", '{"format_version": 1e400}')
    bundles = [*map(bundle_with, manifests), external_bundle(Path("/etc/passwd")), b"", b"\x08" * 100]
    found += [HostileRequest("bundle", "INSPECT", "bundle.onnx", {}, content) for content in bundles]
    return found


def generators() -> dict[str, tuple[float, Callable[[random.Random], HostileRequest]]]:
    """Each kind of request: its share, and what makes one."""
    json_type = {"Content-Type": "application/json"}

    def form(rng: random.Random) -> HostileRequest:
        headers, body = hostile_form(rng)
        return HostileRequest("multipart", "POST", rng.choice(("/classify", "/scenes")), headers | ASYNC, body)

    def headers(rng: random.Random) -> HostileRequest:
        if rng.random() < 0.2:
            return HostileRequest(
                "headers",
                "POST",
                "/scenes",
                {"Content-Type": "image/tiff"} | hostile_headers(rng),
                sound_tiff().content(),
            )
        return HostileRequest(
            "headers",
            rng.choice(("GET", "GET", "HEAD", "OPTIONS", "PUT", "TRACE")),
            rng.choice(GETS),
            hostile_headers(rng),
        )

    return {
        "tiff": (30, lambda rng: tiff_request(hostile_tiff(rng), rng.choice(("/scenes", "/scenes", "/classify")))),
        "envi": (
            12,
            lambda rng: HostileRequest(
                "envi", "POST", rng.choice(("/scenes", "/classify")), FORM | ASYNC, hostile_envi(rng)
            ),
        ),
        "multipart": (10, form),
        "json": (10, lambda rng: HostileRequest("json", "POST", EXECUTION, json_type | ASYNC, hostile_execution(rng))),
        "href": (4, lambda rng: HostileRequest("href", "POST", "/scenes", json_type, hostile_href(rng))),
        "query": (20, lambda rng: HostileRequest("query", "GET", hostile_query(rng))),
        "headers": (13, headers),
        "bundle": (1, lambda rng: HostileRequest("bundle", "INSPECT", "bundle.onnx", {}, hostile_bundle(rng))),
    }

"""Figures as the text of SVG files that are small, and as parts of a page that share their letters.

matplotlib writes six decimals, a name for every group, every picture in full colour, and each letter anew in each file.
The pictures of a study take less than half of that, in a page with many of them less still, and look the same.
"""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from training.figures import STYLE, THEME

RASTER_DPI = 160  # of what is drawn as points; a page shows it at about 115
DECIMALS = 2  # of a point
MOST_COLORS: Final = 256  # of a PNG by a table

FONT = "DejaVuSans"
LETTER = re.compile(r'<path id="(g\.[^"]+)"[^>]*/>\s*')


def draw_svg(figure: Figure) -> str:
    """The picture as the text of an SVG file, dark on white wherever it is shown."""
    buffer = io.StringIO()
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in a script that the font lacks
        figure.savefig(buffer, format="svg", dpi=RASTER_DPI, metadata={"Date": None, "Creator": None})
    return thin(buffer.getvalue())


def embed_svgs(labelled: Sequence[tuple[str, str]]) -> tuple[str, list[str]]:
    """Files and their labels to stand in one page: first what they share, letters and styles, then the pictures.

    Colours go by their names in THEME (`--fig-ink`). Names have a dot, which the page's own never have.
    """
    named = [
        _name_colors(_name_apart(svg, f"f{number}.")) for number, svg in enumerate((svg for svg, _ in labelled), 1)
    ]
    letters = {found[1]: found[0].strip() for svg in named for found in LETTER.finditer(svg)}
    counts = Counter(style for svg in named for style in re.findall(r' style="([^"]*)"', svg))
    classes = {style: f"s{number}" for number, style in enumerate((s for s, n in counts.items() if n > 1), 1)}
    if not labelled:
        return "", []

    def embed(svg: str, label: str) -> str:
        text = re.sub(r"<defs>\s*</defs>\s*", "", LETTER.sub("", svg))
        text = re.sub(r' style="([^"]*)"', lambda found: _class_of(found, classes), text)
        width = re.search(r'width="([0-9.]+)pt"', svg)
        assert width is not None  # matplotlib writes one into every file
        wide = float(width[1]) * 96 / 72  # CSS pixels
        root = f'<svg class="picture" role="img" aria-label="{label}" style="max-width:{1.2 * wide:.0f}px" viewBox='
        return re.sub(r"<svg [^>]*?viewBox=", root, text, count=1)

    styles = "\n".join(f".{name}{{{style}}}" for style, name in classes.items())
    paths = "\n".join(letters[name] for name in sorted(letters))
    shared = (
        f'<svg class="letters" width="0" height="0" aria-hidden="true"><style>\n{styles}\n</style>'
        f"<defs>\n{paths}\n</defs></svg>"
    )
    return shared, [embed(svg, label) for svg, (_, label) in zip(named, labelled, strict=True)]


def _class_of(found: re.Match[str], classes: Mapping[str, str]) -> str:
    return f' class="{classes[found[1]]}"' if found[1] in classes else found[0]


def _name_apart(svg: str, prefix: str) -> str:
    """Ids that no other picture has, but for letters, which look the same in all."""
    return re.sub(r'(\bid="|href="#|url\(#)(?!g\.)', rf"\1{prefix}", svg)


def _name_colors(svg: str) -> str:
    for name, (color, _) in THEME.items():
        svg = svg.replace(color, f"var(--fig-{name})")
    return svg


def thin(svg: str) -> str:
    """matplotlib's SVG with the same picture in fewer bytes."""
    text = svg[svg.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = text.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "").replace("xlink:href=", "href=")
    text = text.replace(f'"#{FONT}-', '"#g.').replace(f'id="{FONT}-', 'id="g.')
    text = re.sub(r"data:image/png;base64,([^\"]*)", lambda found: _small_png(found[1]), text)
    text = re.sub(r' (d|x|y|width|height)="([^"]*)"', _in_value(_path), text)
    text = re.sub(r"(translate\()([^)]*)(?=\))", lambda found: found[1] + _rounded(found[2]), text)
    text = re.sub(r' transform="translate\((\S+) 0\)"/>', r' x="\1"/>', text)  # of letters in a line
    text = re.sub(r' (style)="([^"]*)"', _in_value(lambda value: re.sub(r"\s*([:;])\s*", r"\1", value)), text)
    text = _with_short_ids(text)
    text = _without_bare_groups(text).replace("<g/>", "")
    return re.sub(r">\s+<", ">\n<", text).strip() + "\n"


def _with_short_ids(text: str) -> str:
    """Numbers for what is referred to, but for letters, and nothing for the rest."""
    used = dict.fromkeys(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    short = {name: name if name.startswith("g.") else f"i{number}" for number, name in enumerate(used)}
    text = re.sub(r' id="([^"]*)"', lambda found: f' id="{short[found[1]]}"' if found[1] in short else "", text)
    return re.sub(r'(href="#|url\(#)([^")]+)', lambda found: found[1] + short[found[2]], text)


def _without_bare_groups(text: str) -> str:
    """Groups that neither have a name nor change anything only wrap what is in them."""
    kept: list[str] = []
    says_something: list[bool] = []
    for part in re.split(r"(<g\b[^>]*>|</g>)", text):
        if part == "</g>":
            kept += [part] if says_something.pop() else []
        elif part.startswith("<g") and not part.endswith("/>"):
            says_something.append(part != "<g>")
            kept += [part] if says_something[-1] else []
        else:
            kept.append(part)
    return "".join(kept)


def _in_value(change: Callable[[str], str]) -> Callable[[re.Match[str]], str]:
    """Changes what an attribute holds."""
    return lambda found: f' {found[1]}="{change(found[2])}"'


def _path(value: str) -> str:
    """Lines and coordinates: rounded, and without the blanks that nobody needs."""
    return re.sub(r"\s*([A-Za-z])\s*", r"\1", _rounded(value)).replace("\n", " ").strip()


def _rounded(text: str) -> str:
    return re.sub(r"-?\d+\.\d+(?!\d*e)", lambda found: _shortest(float(found[0])), text)


def _shortest(number: float) -> str:
    text = f"{number:.{DECIMALS}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _small_png(encoded: str) -> str:
    """A picture by a table of colours: the same where it has few of them, and hardly another where it has more."""
    picture = Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGBA")
    pixels = np.asarray(picture)
    colors, places = np.unique(pixels.reshape(-1, 4), axis=0, return_inverse=True)
    if len(colors) > MOST_COLORS:
        # Only the octree knows opacity, which points with soft edges have; of plain colours it keeps fewer apart.
        is_opaque = bool((pixels[..., 3] == 255).all())
        by_table = (
            picture.convert("RGB").quantize(MOST_COLORS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
            if is_opaque
            else picture.quantize(MOST_COLORS, Image.Quantize.FASTOCTREE)
        )
        opacity = None
    else:
        by_table = Image.fromarray(places.reshape(pixels.shape[:2]).astype(np.uint8)).convert("P")
        by_table.putpalette(colors[:, :3].tobytes())
        opacity = colors[:, 3].tobytes() if (colors[:, 3] < 255).any() else None
    buffer = io.BytesIO()
    known = {} if opacity is None else {"transparency": opacity}
    by_table.save(buffer, "PNG", optimize=True, **known)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"

"""SVG files: smaller than matplotlib's, and the same to look at; in a page they share their letters."""

import base64
import io
import re
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.testing import assert_array_equal
from PIL import Image

from tests.browser import needs_chromium, running_browser
from training import figures
from training.svg import RASTER_DPI, draw_svg, embed_svgs, thin


def by_matplotlib(figure: Figure) -> str:
    """The picture before anything is taken out of it."""
    buffer = io.StringIO()
    with mpl.rc_context(figures.STYLE):
        figure.savefig(buffer, format="svg", dpi=RASTER_DPI, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def some_lines() -> Figure:
    points = [figures.Point(10, 80.12, None), figures.Point(20, 90.5, 1.0)]
    return figures.accuracy_by_labels([figures.Line("ours", points, False), figures.Line("SVM", points[::-1], True)])


def some_points() -> Figure:
    generator = np.random.default_rng(0)
    classes = generator.integers(1, 4, 900)
    points = generator.normal(0, 1, (900, 2)) + classes[:, None]
    return figures.embedding(points, classes, ["a", "b", "c"], ["#28b125", "#815fdd", "#b17425"])


def pictures_in(svg: str) -> list[Image.Image]:
    found = re.findall(r'data:image/png;base64,([^"]+)"', svg)
    return [Image.open(io.BytesIO(base64.b64decode(text))) for text in found]


def an_image(values: np.ndarray) -> str:
    """The SVG of an array that is shown as it is."""
    figure = Figure()
    figure.add_subplot().imshow(values, interpolation="none")
    return by_matplotlib(figure)


@pytest.mark.parametrize(("figure", "share"), [(some_lines, 0.7), (some_points, 0.5)])
def test_a_thinned_picture_is_smaller_and_whole(figure, share):
    before = by_matplotlib(figure())
    after = thin(before)
    assert len(after) < share * len(before)
    ElementTree.fromstring(after)


@needs_chromium
@pytest.mark.parametrize("figure", [some_lines, some_points])
def test_a_thinned_picture_looks_the_same(figure):
    before = by_matplotlib(figure())
    with running_browser() as browser:
        page = browser.new_page(viewport={"width": 900, "height": 600})
        shown = []
        for svg in (before[before.index("<svg") :], thin(before)):
            page.set_content(f"<body style='margin:0'>{svg}</body>")
            shown.append(np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB")).astype(int))
    differing = np.abs(shown[0] - shown[1]).max(axis=-1)
    assert (differing > 40).mean() < 0.001
    assert differing.mean() < 0.5
    assert np.ptp(shown[0]) > 100  # something is to be seen at all


def test_few_colours_stay_as_they_are():
    three = np.array([[255, 0, 0, 255], [0, 0, 9, 120], [0, 0, 0, 0]], np.uint8)
    values = three[np.random.default_rng(0).integers(0, 3, (7, 9))]
    before = an_image(values)
    (first,), (second,) = pictures_in(before), pictures_in(thin(before))
    assert second.mode == "P"
    assert_array_equal(np.asarray(first.convert("RGBA")), np.asarray(second.convert("RGBA")))


def test_many_colours_become_a_table_that_is_hardly_another():
    rows, cols = np.mgrid[0:64, 0:64]
    values = np.stack([4 * rows, 4 * cols, 2 * (rows + cols)], axis=-1).astype(np.uint8)
    before = an_image(values)
    (first,), (second,) = pictures_in(before), pictures_in(thin(before))
    assert second.mode == "P"
    differing = np.asarray(first.convert("RGB")).astype(int) - np.asarray(second.convert("RGB"))
    assert np.abs(differing).mean() < 6


def ids_in(text: str) -> list[str]:
    return re.findall(r'\bid="([^"]+)"', text)


def test_pictures_in_a_page_name_their_colours_and_keep_their_ids_to_themselves():
    drawn = draw_svg(some_lines())
    shared, pictures = embed_svgs([(drawn, "A &amp; B"), (drawn, "C")])
    assert 'role="img" aria-label="A &amp; B"' in pictures[0]
    page = shared + "".join(pictures)
    assert "var(--fig-ink)" in page
    assert not any(light in page for light, _ in figures.THEME.values())
    assert len(ids_in(page)) == len(set(ids_in(page)))
    for number, picture in enumerate(pictures, 1):
        assert all(name.startswith(f"f{number}.") for name in ids_in(picture))
        used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', picture))
        assert used <= {*ids_in(picture), *ids_in(shared)}


@needs_chromium
def test_pictures_in_a_page_look_as_they_do_alone():
    svgs = [draw_svg(some_points()), draw_svg(some_lines())]
    shared, pictures = embed_svgs([(svg, "x") for svg in svgs])
    theme = "".join(f"--fig-{name}:{color};" for name, (color, _) in figures.THEME.items())
    size = "width:605px;height:353px;display:block;position:absolute;top:0;left:0"
    alone = [re.sub(r'width="[^"]*" height="[^"]*"', f'style="{size}"', svg, count=1) for svg in svgs]
    paged = [re.sub(r'style="max-width[^"]*"', f'style="{size}"', picture, count=1) for picture in pictures]
    with running_browser() as browser:
        page = browser.new_page(viewport={"width": 700, "height": 400})

        def shown(body: str) -> np.ndarray:
            page.set_content(f"<style>:root{{{theme}}} .letters{{position:absolute}}</style>{body}")
            return np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB")).astype(int)

        differing = [np.abs(shown(one) - shown(shared + other)) for one, other in zip(alone, paged, strict=True)]
    assert all(found.mean() < 0.05 for found in differing)


def test_a_page_without_pictures_shares_nothing():
    assert embed_svgs([]) == ("", [])

"""The pictures: that they draw what is odd without a warning, and that their colours can be told from the ground."""

import numpy as np
import pytest

from tests.studies import fields
from training import figures
from training.svg import draw_svg

NAMES = ("roof", "a class with a very long name that nobody can read", "$20 & <more>", "草地")
COLORS = ("#112233", "#ddccbb", "#ff0000", "#00ff00")


def luminance(color: str) -> float:
    """As WCAG 2 has it."""
    shares = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(first: str, second: str) -> float:
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("name", [name for name in figures.THEME if name not in ("line", "ground")])
def test_colours_stand_out_from_the_ground(name, scheme):
    wanted = 4.5 if name in ("ink", "quiet") else 3
    assert contrast(figures.THEME[name][scheme], figures.THEME["ground"][scheme]) >= wanted


def map_arrays(rows: int, cols: int) -> figures.MapArrays:
    truth = fields((rows, cols), len(NAMES))
    split = np.where(truth > 0, 3, 0)
    split[np.nonzero(truth)[0][:5], np.nonzero(truth)[1][:5]] = 1
    rgb = np.zeros((rows, cols, 3), np.uint8)
    return figures.MapArrays(rgb, truth, split, np.maximum(truth, 1), np.full(truth.shape, 0.5))


def drawn(kind: str) -> figures.Figure:
    attention = np.full((2, 3, 2, 8, 8), 1 / 64)
    margin = figures.Margin("a", [1.0], False)
    draw = {
        "spread of one seed": lambda: figures.spread(["a", "b"], {"x": [[90.0], []], "y": [[], [80.0]]}, [1]),
        "one margin": lambda: figures.margins([margin], "points"),
        "two methods": lambda: figures.difference_matrix(["a", "b"], np.ones((2, 2)), np.eye(2, dtype=bool)),
        "labels": lambda: figures.accuracy_by_labels(
            [figures.Line("a", [figures.Point(10, 80, None), figures.Point(20, 90, 1.0)], False)]
        ),
        "equal speeds": lambda: figures.accuracy_by_speed({"angle": [(2, 3.0, 90.0), (4, 3.0, 91.0)]}),
        "speeds of microseconds": lambda: figures.accuracy_by_speed({"angle": [(2, 1e-5, 90.0), (4, 2e-5, 91.0)]}),
        "a class nobody judged": lambda: figures.class_accuracies(NAMES, [1, 2, 3, 4], {"a": [None, (5.0, None)] * 2}),
        "confusion without pixels": lambda: figures.confusion_matrix(NAMES, np.zeros((4, 4), int)),
        "many classes": lambda: figures.confusion_matrix([f"class {n}" for n in range(40)], np.eye(40, dtype=int)),
        "flat scene": lambda: figures.class_maps(map_arrays(20, 120), NAMES, COLORS),
        "tall scene": lambda: figures.class_maps(map_arrays(120, 20), NAMES, COLORS),
        "large scene": lambda: figures.class_maps(map_arrays(900, 750), NAMES, COLORS),
        "features": lambda: figures.embedding(np.eye(4)[:, :2], np.array([1, 2, 3, 4]), NAMES, COLORS),
        "even attention": lambda: figures.attention_maps(np.zeros((2, 8, 8, 3), np.uint8), attention, ["a", "b\nc"]),
        "one curve": lambda: figures.reliability({"as it is": ([(0.9, 0.8, 5)], None)}),
    }
    return draw[kind]()


KINDS = (
    "spread of one seed", "one margin", "two methods", "labels", "equal speeds", "speeds of microseconds",
    "a class nobody judged", "confusion without pixels", "many classes", "flat scene", "tall scene", "large scene",
    "features", "even attention", "one curve",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_odd_is_drawn(kind):
    assert draw_svg(drawn(kind)).rstrip().endswith("</svg>")


def test_the_same_picture_has_the_same_bytes():
    assert draw_svg(drawn("labels")) == draw_svg(drawn("labels"))


def test_pictures_leave_matplotlibs_settings_as_they_were():
    before = dict(figures.mpl.rcParams)
    draw_svg(drawn("labels"))
    assert dict(figures.mpl.rcParams) == before


@pytest.mark.parametrize(("largest", "is_stretched"), [(-30.0, True), (-1.5, False)])
def test_small_differences_are_told_apart_beside_a_very_large_one(largest, is_stretched):
    rows = [figures.Margin(f"{value:g}", [value], False) for value in (largest, -0.5, -0.1, 0.1, 0.2)]
    axes = figures.margins(rows, "points").axes[0]
    places = axes.transAxes.inverted().transform(axes.transData.transform([(-0.5, 0), (0.2, 0)]))
    assert places[1, 0] - places[0, 0] > 0.15  # of the axis
    assert ("stretched" in axes.get_xlabel()) == is_stretched

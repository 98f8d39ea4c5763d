"""Class names and colours, from files and from `--classes`."""

import pytest
import rasterio

from hyperscene.errors import LabelsUnusable
from hyperscene.training.data.classes import FileLegend, distinct_color, make_legend, read_file_legend
from tests.scenes import quadrants, write_tif

NOTHING = FileLegend({}, {})


def names(values, given=None, in_file=NOTHING) -> list[str]:
    return [entry.name for entry in make_legend(values, in_file, given)]


def test_names_are_given_in_the_order_of_the_values():
    assert names([1, 10, 11], "a,b,c") == ["a", "b", "c"]


def test_names_are_given_by_value_in_any_order():
    assert names([1, 10, 11], "11=c, 1=a, 10=b") == ["a", "b", "c"]


def test_colours_follow_names():
    legend = make_legend([1, 2], NOTHING, "1=dry grass #a0b0c0,2=soil")
    assert (legend[0].name, legend[0].color) == ("dry grass", "#a0b0c0")


def test_names_are_read_from_a_file_with_one_per_line(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("1=roof, flat #d73027\n2=pavement\n")
    assert names([1, 2], str(path)) == ["roof, flat", "pavement"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("a,b,c,d", "class 'd' \\(value 4\\) of --classes has no labelled pixel"),
        ("1=a,2=b,3=c,7=d", "'d' \\(value 7\\)"),
        ("1=a,2=b", "the value 3, which --classes does not name"),
        ("a,b", "2 names for 3 label values"),
        ("a,a,b", "two classes are called 'a'"),
        ("1=a,b,c", "all of them or for none"),
        ("1=a,1=b,2=c", "one value twice"),
        (" , ", "names no class"),
    ],
)
def test_names_that_do_not_fit_are_refused(given, reason):
    with pytest.raises(LabelsUnusable, match=reason):
        make_legend([1, 2, 3], NOTHING, given)


def test_given_names_replace_those_of_the_file_and_keep_its_colours():
    legend = make_legend([1, 2], FileLegend({1: "x", 2: "y"}, {2: "#010203"}), "a,b")
    assert [entry.name for entry in legend] == ["a", "b"]
    assert legend[1].color == "#010203"


def test_names_fixed_by_the_file_take_colours_but_no_other_names():
    polygons = FileLegend({1: "grass", 2: "roof"}, {}, are_names_fixed=True)
    legend = make_legend([1, 2], polygons, "roof #ff0000")
    assert [(entry.name, entry.color) for entry in legend][1] == ("roof", "#ff0000")
    with pytest.raises(LabelsUnusable, match="own classes are grass, roof; --classes names 'tree'"):
        make_legend([1, 2], polygons, "roof,tree")


@pytest.mark.parametrize("content", ["1=gr\u00fcn\n2=rot", "\ufeff1=gr\u00fcn\n2=rot"])
def test_a_file_of_names_may_begin_with_a_byte_order_mark(tmp_path, content):
    (tmp_path / "names.txt").write_text(content, encoding="utf-8")
    assert names([1, 2], str(tmp_path / "names.txt")) == ["gr\u00fcn", "rot"]


def test_a_file_of_names_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "names.txt").write_bytes("gr\u00fcn".encode("latin-1"))
    with pytest.raises(LabelsUnusable, match="UTF-8"):
        make_legend([1], NOTHING, str(tmp_path / "names.txt"))


def test_broken_sidecars_are_ignored(tmp_path):
    path = write_tif(tmp_path / "l.tif", quadrants(4, 4, 2))
    (tmp_path / "l.qml").write_text("<qgis><paletteEntry value='1' label='a' color='red'/></qgis>")
    (tmp_path / "l.tif.aux.xml").write_text("<PAMDataset>")
    with rasterio.open(path) as file:
        legend = read_file_legend(path, file)
    assert (legend.names, legend.colors) == ({1: "a"}, {})


def test_generated_colours_all_differ():
    assert len({distinct_color(number) for number in range(64)}) == 64


def test_names_and_colours_are_read_from_a_label_raster(tmp_path):
    path = write_tif(tmp_path / "l.tif", quadrants(4, 4, 2))
    (tmp_path / "l.tif.aux.xml").write_text(
        "<PAMDataset><PAMRasterBand band='1'><CategoryNames><Category>none</Category><Category>lake</Category>"
        "</CategoryNames></PAMRasterBand></PAMDataset>"
    )
    (tmp_path / "l.qml").write_text(
        "<qgis><pipe><colorPalette><paletteEntry value='2' label='shore' color='#112233'/></colorPalette></pipe></qgis>"
    )
    with rasterio.open(path, "r+") as file:
        file.write_colormap(1, {1: (9, 8, 7, 255)})
    with rasterio.open(path) as file:
        legend = read_file_legend(path, file)
    assert legend.names == {1: "lake", 2: "shore"}
    assert (legend.colors[1], legend.colors[2]) == ("#090807", "#112233")

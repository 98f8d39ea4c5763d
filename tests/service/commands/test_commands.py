"""`hyperscene classify`, `inspect` and `bench` as child processes."""

import fcntl
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

import numpy as np
import pytest
import rasterio

from hyperscene.model.bundle import DEMO_BUNDLE, load_bundle
from hyperscene.service.mapping.gdal import ignore_missing_georeference
from hyperscene.service.mapping.output import RESULTS
from tests.bundles import write_bundle
from tests.command_line import cli_command, refusal, run
from tests.products import ENMAP_STEM, enmap_values, write_enmap, write_prisma, zipped
from tests.scenes import UTM, quadrants, spectra_of, write_envi, write_tif

NM = np.linspace(450, 900, 5)


@pytest.fixture
def scene(tmp_path):
    return write_tif(tmp_path / "scene.tif", spectra_of(quadrants(40, 30), 5), wavelengths_nm=NM)


def classify(scene, bundle, *more):
    return run("classify", scene, "-o", scene.parent / "out", "--bundle", bundle, *more)


def test_classify_writes_seven_files_and_prints_the_areas(scene, bundle):
    done = classify(scene, bundle)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (scene.parent / "out").iterdir()) == sorted(RESULTS)
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["class", "pixels", "%", "hectares"]
    assert sum(int(line.split()[2]) for line in lines[1:4]) == 1200
    assert "80 patches in" in lines[-1]
    assert done.stderr == "patches 80/80\n"


@pytest.mark.slow
def test_classify_takes_an_envi_scene_by_header_and_uses_the_demo_bundle(tmp_path):
    assert run("synth", tmp_path / "s.bil", "--rows", 24, "--cols", 20).returncode == 0
    done = run("classify", tmp_path / "s.hdr", "-o", tmp_path / "out", "--stride", 8)
    assert done.returncode == 0, done.stderr
    assert "using the demo bundle, demo.onnx" in done.stderr
    with rasterio.open(tmp_path / "out" / "classes.tif") as classes, rasterio.open(tmp_path / "s.bil") as original:
        assert (classes.shape, classes.transform) == (original.shape, original.transform)


def test_classify_applies_every_option(scene, bundle):
    options = ("--stride", 1, "--blend", "none", "--device", "cpu", "--threads", 1, "--batch", 9, "--strip-px", 7)
    done = classify(scene, bundle, *options, "--probability-type", "float32")
    assert done.returncode == 0, done.stderr
    summary = json.loads((scene.parent / "out" / "summary.json").read_text())
    assert summary["settings"] == {
        "stride_px": 1,
        "blend": "none",
        "probability_type": "float32",
        "strip_px": 7,
        "batch": 9,
        "threads": 1,
        "unknown": False,
    }
    with rasterio.open(scene.parent / "out" / "probabilities.tif") as raster:
        assert set(raster.dtypes) == {"float32"}


def test_warnings_are_printed(tmp_path, bundle):
    scene = write_tif(tmp_path / "s.tif", spectra_of(quadrants(9, 9), 5) * 1000, wavelengths_nm=NM, transform=None,
                      crs=None)  # fmt: skip
    done = classify(scene, bundle)
    assert done.returncode == 0
    assert "warning: the scene has no georeference" in done.stderr
    assert "divide it by 1000" in done.stderr
    assert "hectares" not in done.stdout


def bad_scenes(folder):
    """An invalid file of each kind, by its error message."""
    values = spectra_of(quadrants(40, 30), 5)
    cut = write_tif(folder / "cut.tif", values, wavelengths_nm=NM)
    cut.write_bytes(cut.read_bytes()[:-500])
    cut_envi = write_envi(folder / "cut.img", values)
    cut_envi.write_bytes(cut_envi.read_bytes()[:-2])
    alone = write_envi(folder / "alone.img", values)
    alone.unlink()
    text = folder / "notes.tif"
    text.write_text("no raster")
    return {
        "cut.tif is cut short": cut,
        "cut.img is cut short": cut_envi,
        "header without its data: add alone.img": folder / "alone.hdr",
        "send GeoTIFF, or ENVI": text,
        "complex64 samples": write_tif(folder / "radar.tif", values.astype("complex64")),
        "does not cover": write_tif(folder / "swir.tif", values, wavelengths_nm=np.linspace(1500, 2400, 5)),
        "without wavelengths": write_tif(folder / "unknown.tif", values),
        "there is no file": folder / "missing.tif",
        "is a folder": folder,
    }


@pytest.mark.slow
@pytest.mark.parametrize("command", ["classify", "inspect"])
def test_bad_scenes_are_refused_in_one_line_and_leave_nothing(tmp_path, bundle, command):
    for words, scene in bad_scenes(tmp_path).items():
        if command == "inspect" and words in ("does not cover", "without wavelengths"):
            continue  # inspect shows these
        more = ("-o", tmp_path / "out") if command == "classify" else ()
        line = refusal(run(command, scene, "--bundle", bundle, *more))
        assert words in line, line
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--blend", "none"), "needs stride 1"),
        (("--stride", 16), "stride must be one of 1, 2, 4, 8"),
        (("--device", "cuda"), "has no CUDAExecutionProvider"),
        (("--threads", -1), "threads and batch must be 1 or more"),
        (("--strip-px", -4), "1 pixel or more"),
    ],
)
def test_impossible_options_are_refused_in_one_line(scene, bundle, options, words):
    assert words in refusal(classify(scene, bundle, *options))
    assert not (scene.parent / "out").exists()


@pytest.mark.parametrize("options", [("--stride", "3"), ("--blend", "cubic"), ("--device", "tpu"), ("--no-such",)])
def test_wrong_usage_ends_with_2(scene, bundle, options):
    assert classify(scene, bundle, *options).returncode == 2


def test_a_broken_bundle_is_refused(scene, tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(DEMO_BUNDLE.read_bytes()[:5000])
    assert "broken.onnx is cut short" in refusal(classify(scene, broken))


def in_a_terminal(*arguments) -> str:
    """The output in a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    command = cli_command(*arguments)
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 10_000)
        except OSError:  # the terminal's other side is closed
            break
        if not part:
            break
        shown += part
    process.wait(timeout=60)
    os.close(ours)
    return shown.decode()


def test_a_terminal_gets_a_bar(scene, bundle):
    shown = in_a_terminal("classify", scene, "-o", scene.parent / "out", "--bundle", bundle)
    assert "patches: 100%|" in shown
    assert "80/80" in shown
    assert "hectares" in shown


def test_a_refusal_in_a_terminal_is_one_line_without_a_bar(tmp_path, bundle):
    shown = in_a_terminal("classify", tmp_path / "no.tif", "-o", tmp_path / "out", "--bundle", bundle)
    assert shown.count("\n") == 1
    assert "|" not in shown


@pytest.mark.slow
@pytest.mark.parametrize("stop_signal", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_at_once_and_leaves_nothing(tmp_path, stop_signal):
    assert run("synth", tmp_path / "s.tif", "--rows", 300, "--cols", 300).returncode == 0
    command = cli_command("classify", tmp_path / "s.tif", "-o", tmp_path / "out", "--stride", 1)
    # Processes in the background ignore SIGINT, and their children inherit that.
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )
    deadline = time.monotonic() + 240
    while not list((tmp_path / "out").glob(".unfinished-*/plain_classes.tif")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(stop_signal)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 130
    assert message.splitlines()[-1] == "hyperscene: stopped"
    assert "Traceback" not in message
    assert not (tmp_path / "out").exists()


def test_inspect_shows_a_scene_on_one_screen(tmp_path, bundle):
    header = "wavelength units = Micrometers\nwavelength = {0.45, 0.5625, 0.6, 0.675, 0.7875, 0.9}\n"
    header += "bbl = {1, 1, 0, 1, 1, 1}\n"
    values = spectra_of(quadrants(40, 30), 6)
    values[:10] = -1
    path = write_envi(tmp_path / "s.img", values, header + "data ignore value = -1\n")
    done = run("inspect", path, "--bundle", bundle)
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert len(lines) < 24
    assert lines["size"] == "40 rows x 30 cols x 5 bands (1 bad ones dropped), float32"
    assert lines["wavelengths"] == "450 to 900 nm"
    assert lines["valid"] == "75.0 % of the pixels"
    assert lines["CRS"] == "EPSG:32633"
    assert lines["pixel"] == "30 x 30"
    assert lines["bundle"] == "test: 5 bands, the same wavelengths"


def test_inspect_and_summary_say_which_bands_are_bridged(tmp_path):
    nm = np.linspace(450, 900, 46)
    bundle = write_bundle(tmp_path / "b.onnx", bands=46, wavelengths_nm=nm.tolist())
    kept = (nm <= 600) | (nm >= 650)
    path = write_tif(tmp_path / "s.tif", spectra_of(quadrants(20, 20), 46)[..., kept], wavelengths_nm=nm[kept])
    shown = run("inspect", path, "--bundle", bundle).stdout
    fit = "46 bands, resampled from 42 of the scene's; 88.9 % of its range covered, 4 bands bridged, largest gap 50 nm"
    assert fit in " ".join(shown.split())
    document = json.loads(run("inspect", path, "--bundle", bundle, "--json").stdout)
    assert document["fit"] == {"covered_share": 0.8889, "largest_gap_nm": 50.0, "bridged_bands": 4}
    warning = "4 of the bundle's 46 bands lie in gaps of the scene (600 to 650 nm) and are interpolated"
    assert [text for text in document["warnings"] if text.startswith(warning)]
    assert run("classify", path, "-o", tmp_path / "map", "--bundle", bundle).returncode == 0
    summary = json.loads((tmp_path / "map" / "summary.json").read_text())
    assert [text for text in summary["warnings"] if text.startswith(warning)]


def test_inspect_shows_why_a_scene_does_not_match(tmp_path, bundle):
    path = write_tif(tmp_path / "s.tif", spectra_of(quadrants(9, 9), 5), wavelengths_nm=np.linspace(450, 600, 5))
    document = json.loads(run("inspect", path, "--bundle", bundle, "--json").stdout)
    assert document["is_mappable"] is False
    assert "450 to 600 nm" in document["match"]


def test_inspect_shows_how_each_bundle_of_a_folder_fits_and_where_a_swath_lies(tmp_path):
    (tmp_path / "bundles").mkdir()
    write_bundle(tmp_path / "bundles" / "z.onnx", bands=3, wavelengths_nm=[450.0, 560.0, 670.0], fwhm_nm=None)
    shutil.copy(DEMO_BUNDLE, tmp_path / "bundles" / "a.onnx")
    scene = write_prisma(tmp_path / "PRS_L2C_STD.he5", np.full((9, 8, 11), 9_000), "L2C")
    done = run("inspect", scene, "--bundle", tmp_path / "bundles", "--json")
    document = json.loads(done.stdout)
    assert [found["is_mappable"] for found in document["bundles"]] == [False, True]
    assert (document["bundle"], document["is_mappable"]) == (document["bundles"][1]["bundle"], True)
    assert document["map"]["crs"] == "EPSG:32633"
    shown = run("inspect", scene, "--bundle", tmp_path / "bundles").stdout
    assert "EPSG:32633, on which the map is laid out" in shown
    assert "30 x 30" in shown
    assert "holds no bundle" in refusal(run("inspect", scene, "--bundle", tmp_path))


def test_inspect_as_json_is_one_document_even_with_nan_for_no_data(tmp_path, bundle):
    values = spectra_of(quadrants(9, 9), 5)
    values[0, 0] = np.nan
    path = write_tif(tmp_path / "s.tif", values, wavelengths_nm=NM, nodata=np.nan)
    done = run("inspect", path, "--bundle", bundle, "--json")
    document = json.loads(done.stdout, parse_constant=pytest.fail)
    assert (document["rows"], document["cols"], document["bands"]) == (9, 9, 5)
    assert document["crs"] == UTM.to_string()
    assert document["valid_share"] == pytest.approx(80 / 81, abs=1e-5)
    assert document["is_mappable"] is True
    assert done.stderr == ""


def test_a_product_is_inspected_and_mapped_with_its_masks(tmp_path, bundle):
    product = zipped(write_enmap(tmp_path / ENMAP_STEM, enmap_values(30, 25)), tmp_path / "enmap.zip")
    done = run("inspect", product, "--bundle", bundle, "--quicklook", tmp_path / "look.png")
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if not line.startswith(" "))
    assert lines["product"] == "EnMAP L2A 2022-07-24T10:45:26"
    assert lines["size"] == "30 rows x 25 cols x 10 bands (2 bad ones dropped), int16"
    masks = " ".join(done.stdout.split()).partition(" masks ")[2]
    assert masks.startswith("cirrus 0.1 % (not applied), cloud 2.0 %, defective 0.1 % (not applied), shadow 2.0 %")
    assert lines["scene"] == f"{product} (GeoTIFF)"
    assert lines["values"].endswith("(reflectance)")
    assert "7 (958 nm): the overlap" in lines["warning"]
    with ignore_missing_georeference(), rasterio.open(tmp_path / "look.png") as picture:
        assert picture.shape == (30, 50)
    done = run("classify", product, "--bundle", bundle, "-o", tmp_path / "out", "--mask", "none")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(RESULTS)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["no_data_pixels"] == 6
    assert [band["band"] for band in summary["scene"]["dropped_bands"]] == [7, 10]
    assert "'rain' is no mask" in refusal(run("classify", product, "-o", tmp_path / "o", "--mask", "rain"))


def test_wavelengths_may_come_from_a_file(tmp_path, bundle):
    np.save(tmp_path / "cube.npy", spectra_of(quadrants(20, 18), 5))
    (tmp_path / "nm.txt").write_text("\n".join(map(str, NM)))
    options = ("--bundle", bundle, "--wavelengths", tmp_path / "nm.txt")
    assert json.loads(run("inspect", tmp_path / "cube.npy", *options, "--json").stdout)["is_mappable"] is True
    done = run("classify", tmp_path / "cube.npy", *options, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "wavelengths for 5 bands" in refusal(
        run("inspect", tmp_path / "cube.npy", "--bundle", bundle, "--wavelengths", write_numbers(tmp_path / "few.txt"))
    )


def write_numbers(path):
    path.write_text("450, 560\n")
    return path


def test_inspect_shows_a_bundle(tmp_path):
    done = run("inspect", DEMO_BUNDLE)
    assert done.returncode == 0, done.stderr
    for words in (
        "Broad land cover, learnt from synthetic",
        "8: water, forest",
        "51, 420 to 2417.78 nm",
        "OA 93.82",
        "random: 713 to train",
        "self-check    passed",
    ):
        assert words in done.stdout
    document = json.loads(run("inspect", DEMO_BUNDLE, "--json").stdout)
    assert document["classes"] == load_bundle(DEMO_BUNDLE).manifest.class_names
    plain = json.loads(run("inspect", write_bundle(tmp_path / "b.onnx"), "--json").stdout)
    assert plain["scores"]["oa"] is None


@pytest.mark.slow
def test_bench_measures_everything_it_names(tmp_path):
    options = (
        "--rounds",
        1,
        "--patches",
        36,
        "--loop-s",
        0.1,
        "--side-px",
        64,
        "--json",
        tmp_path / "b.json",
        "--out",
        tmp_path / "kept",
    )
    done = run("bench", *options)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "b.json").read_text())
    assert document["mflop_per_patch"] == pytest.approx(134.2, abs=0.1)
    assert document["gemm_gflops"] > 0
    assert all(rate > 0 for rate in document["patches_per_s"].values() if rate is not None)
    assert document["patches_per_s"]["ours"] > 0
    # With one round, each share is that round's; its size depends on the machine's load and is not checked.
    gflop = document["mflop_per_patch"] / 1000
    for name, share in document["share_of_gemm"].items():
        if share is None:  # OpenVINO, where it is the engine itself
            continue
        assert share == pytest.approx(document["patches_per_s"][name] * gflop / document["gemm_gflops"])
    assert set(document["strides"]) == {"1", "2", "4", "8"}
    assert document["peak_memory_mb"] > 10
    assert document["machine"]["cores"] >= 1
    assert document["first_strip_s"] > 0
    anchors = document["anchors"]
    assert anchors["map_to"]["forest"] == pytest.approx(anchors["seconds"]["forest"] / anchors["seconds"]["map"])
    assert "random forest, 500 trees" in done.stdout
    assert "matrix products" in done.stdout
    assert (tmp_path / "kept" / "map" / "classes.tif").is_file()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rounds", 0), "--rounds and --patches must be 1 or more"),
        (("--loop-s", 0), "--loop-s above 0"),
        (("--json", "/no/such/folder/b.json"), "there is no folder /no/such/folder"),
        (("--out", "/dev/null/x"), "choose another folder"),
    ],
)
def test_bench_refuses_invalid_options_before_it_measures(options, words):
    assert words in refusal(run("bench", "--bundle", DEMO_BUNDLE, *options))


def test_the_map_is_written_even_if_standard_error_is_closed(scene, bundle):
    options = ["classify", scene, "-o", scene.parent / "out", "--bundle", bundle]
    command = cli_command(*options)
    reading, writing = os.pipe()
    os.close(reading)
    subprocess.run(command, stderr=writing, stdout=subprocess.DEVNULL, timeout=60, check=False)
    os.close(writing)
    assert sorted(path.name for path in (scene.parent / "out").iterdir()) == sorted(RESULTS)


def test_a_full_disk_for_standard_output_is_reported_in_one_line():
    with Path("/dev/full").open("w") as full:
        command = cli_command("inspect", DEMO_BUNDLE)
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr

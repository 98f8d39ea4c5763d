"""POST /classify over HTTP; the rasters are those of the library, byte for byte."""

import io
import tarfile
import zipfile

import numpy as np
import pytest
import rasterio

from hyperscene.model.bundle import load_bundle
from hyperscene.service.mapping.engines import make_engine
from hyperscene.service.mapping.options import MapOptions
from hyperscene.service.mapping.output import RESULTS
from hyperscene.service.mapping.pipeline import map_scene
from hyperscene.service.mapping.products.product import ReadOptions
from hyperscene.service.mapping.scenes import open_scene, read_cube
from tests.bundles import write_bundle
from tests.products import (
    EMIT_NM,
    ENMAP_STEM,
    enmap_values,
    positions,
    smooth_cube,
    write_aviris3_radiance,
    write_aviris_ng,
    write_desis,
    write_emit,
    write_enmap,
    write_enmap_l1b,
    write_neon,
    write_netcdf3,
    write_pace,
    write_prisma,
    write_tanager,
    zipped,
)
from tests.scenes import WAVELENGTH_LINE, WAVELENGTHS, write_envi, write_tif
from tests.server import running_server


@pytest.fixture(scope="module")
def cube():
    return np.random.default_rng(3).uniform(0.05, 0.6, (40, 33, 5)).astype("float32")


@pytest.fixture(scope="module")
def tif(tmp_path_factory, cube):
    return write_tif(tmp_path_factory.mktemp("scene") / "field.tif", cube, wavelengths_nm=WAVELENGTHS)


@pytest.fixture(scope="module")
def envi(tmp_path_factory, cube):
    return write_envi(tmp_path_factory.mktemp("scene") / "field.img", cube, WAVELENGTH_LINE, "BIL")


def library_map(tmp_path, scene, bundle_path, masks=None, **options):
    bundle, output = load_bundle(bundle_path), tmp_path / "library"
    read = open_scene(scene, options=ReadOptions(masks), work=tmp_path)
    map_scene(read, bundle, make_engine(bundle, "cpu"), output, MapOptions(**options))
    return {path.name: path.read_bytes() for path in output.iterdir()}


def send(client, *paths, accept=None, prefer=None, **fields):
    files = [("scene", (path.name, path.read_bytes())) for path in paths]
    headers = {name: value for name, value in (("Accept", accept), ("Prefer", prefer)) if value}
    return client.post("/classify", files=files, data=fields, headers=headers)


def test_the_class_map_of_a_geotiff_is_that_of_the_library(client, tif, bundle_folder, tmp_path):
    response = send(client, tif)
    assert response.status_code == 200
    assert response.headers["content-type"] == "image/tiff"
    assert response.content == library_map(tmp_path, tif, bundle_folder / "pixel.onnx")["classes.tif"]


def test_the_class_map_of_an_envi_scene_is_that_of_the_library(client, envi, bundle_folder, tmp_path):
    response = send(client, envi, envi.with_suffix(".hdr"))
    assert response.content == library_map(tmp_path, envi, bundle_folder / "pixel.onnx")["classes.tif"]


def test_error_messages_use_the_uploaded_file_names(client, tif, envi, tmp_path):
    half = tmp_path / "half.tif"
    half.write_bytes(tif.read_bytes()[:2000])
    assert send(client, half).json()["detail"].startswith("half.tif is cut short")
    short, header = tmp_path / "short.img", tmp_path / "short.hdr"
    short.write_bytes(envi.read_bytes()[:2000])
    header.write_text(envi.with_suffix(".hdr").read_text())
    assert send(client, short, header).json()["detail"].startswith("short.img")


def test_the_map_has_the_scenes_georeference(client, tif):
    with rasterio.open(io.BytesIO(send(client, tif).content)) as mapped, rasterio.open(tif) as scene:
        assert (mapped.crs, mapped.transform, mapped.shape) == (scene.crs, scene.transform, scene.shape)


def test_a_zip_has_every_result(client, tif, bundle_folder, tmp_path):
    response = send(client, tif, accept="application/zip", model="patch", stride_px="2", blend="linear")
    expected = library_map(tmp_path, tif, bundle_folder / "patch.onnx", stride_px=2, blend="linear")
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == sorted(RESULTS)
        for name in RESULTS:
            if not name.endswith(".json"):  # contains times
                assert archive.read(name) == expected[name], name


def test_an_asynchronous_job_writes_the_same_bytes(server, client, tif, bundle_folder, tmp_path):
    response = send(client, tif, prefer="respond-async", probability_type="float32")
    assert response.status_code == 201
    job = response.json()
    assert response.headers["location"] == f"{server.url}/jobs/{job['jobID']}"
    assert server.finished(job["jobID"])["status"] == "successful"
    expected = library_map(tmp_path, tif, bundle_folder / "pixel.onnx", probability_type="float32")
    for name in ("classes.tif", "probabilities.tif", "confidence.tif", "classes.qml", "preview.png"):
        assert client.get(f"/jobs/{job['jobID']}/results/{name}").content == expected[name], name


def test_the_summary_has_the_uploaded_file_name(client, tif):
    job = send(client, tif).headers["location"]
    summary = client.get(f"{job}/results/summary.json").json()
    assert summary["scene"]["name"] == "field.tif"
    assert client.get(f"{job}/results/item.json").json()["id"] == job.rsplit("/", 1)[1]


def test_the_jobs_url_is_in_a_header(client, tif):
    response = send(client, tif)
    assert client.get(response.headers["location"]).json()["status"] == "successful"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stride_px": "3"}, "stride_px must be one of 1, 2, 4, 8, 16"),
        ({"blend": "sharp"}, "blend must be one of angle, linear, none"),
        ({"blend": "none"}, "needs stride 1"),
        ({"stride": "4"}, "no option 'stride'"),
        ({"probability_type": "float64"}, "probability_type must be one of"),
    ],
)
def test_invalid_options_are_refused_by_name(client, tif, fields, message):
    response = send(client, tif, **fields)
    assert response.status_code == 422
    assert message in response.json()["detail"]


def test_an_unknown_model_is_refused_with_a_list_of_models(client, tif):
    response = send(client, tif, model="nothing")
    assert response.status_code == 404
    assert response.json()["code"] == "no_such_model"
    assert "patch, pixel, root" in response.json()["detail"]


def test_a_refused_scene_leaves_nothing_on_disk(server, client, tif):
    before = sorted(path.name for path in (server.data / "scenes").iterdir())
    assert send(client, tif, model="nothing").status_code == 404
    assert sorted(path.name for path in (server.data / "scenes").iterdir()) == before
    assert not any((server.data / "incoming").iterdir())


# Products. The bundle's five bands lie between 450 and 2200 nm, where all of them have bands.


@pytest.fixture(scope="module")
def broad(tmp_path_factory):
    """A bundle for products, and a server with it."""
    folder = tmp_path_factory.mktemp("broad")
    bundle = write_bundle(folder / "broad.onnx", wavelengths_nm=[450.0, 560.0, 670.0, 860.0, 2200.0])
    with running_server(folder / "data", "--bundles", folder, "--model", "broad", "--device", "cpu") as running:
        yield running, bundle


CUBE = smooth_cube(40, 33, len(EMIT_NM))


def write_product(folder, kind):
    """A small product; returns the path that the library opens, and the files to send."""
    folder.mkdir()
    others = {
        "EnMAP L1B": lambda: write_enmap_l1b(folder / ENMAP_STEM, enmap_values(40, 33)),
        "Tanager": lambda: write_tanager(folder / "20250815_043916_87_4001_basic_sr.h5", CUBE, is_ortho=False),
        "PACE": lambda: write_pace(folder / "PACE_OCI.20240809T105059.L2.SFREFL.nc", CUBE),
        "AVIRIS-3": lambda: write_aviris3_radiance(folder / "AV320230926t201618_001_L1B_RDN_x_RDN.nc", CUBE),
        "AVIRIS-NG": lambda: write_aviris_ng(folder / "ang20150422t163638_rdn_v1e", CUBE).parent,
        "netCDF-3": lambda: write_netcdf3(folder / "cube.nc", CUBE, "brc", 2),
        "DESIS": lambda: write_desis(folder / "desis", (CUBE * 10_000).astype(np.int16), EMIT_NM),
    }
    if kind in others:
        path = others[kind]()
        if kind == "AVIRIS-NG":
            return path, [zipped(path, folder / "product.zip")]
        return path, sorted(path.iterdir()) if path.is_dir() else [path]
    if kind.startswith("EnMAP"):
        endings = {"EnMAP files in JPEG 2000": "JP2", "EnMAP files in BIL": "BIL"}
        product = write_enmap(folder / ENMAP_STEM, enmap_values(40, 33), ending=endings.get(kind, "TIF"))
        if kind == "EnMAP zip":
            return product, [zipped(product, folder / f"{ENMAP_STEM}.zip")]
        if kind == "EnMAP tar.gz":
            with tarfile.open(folder / "product.tar.gz", "w:gz") as archive:
                archive.add(product, product.name)
            return product, [folder / "product.tar.gz"]
        if kind == "EnMAP image and metadata":
            for path in product.glob("*-QL_*"):
                path.unlink()
        return product, sorted(product.iterdir())
    if kind.startswith("EMIT"):
        path = write_emit(folder, smooth_cube(40, 33, len(EMIT_NM)))
        if kind == "EMIT and its mask":
            return path, sorted(folder.iterdir())
        path.with_name(path.name.replace("_RFL_", "_MASK_")).unlink()
        return path, [path]
    if kind == "NEON":
        path = write_neon(folder / "NEON_D02_SERC_DP3_368000_4306000_reflectance.h5", smooth_cube(40, 33, 7))
        return path, [path]
    level = kind.split()[1]
    samples = np.random.default_rng(1).integers(500, 40_000, (40, 33, 11))
    path = write_prisma(folder / f"PRS_{level}_STD_20240402102837.he5", samples, level)
    return path, [path]


KINDS = ("EnMAP zip", "EnMAP tar.gz", "EnMAP files", "EnMAP files in JPEG 2000", "EnMAP files in BIL",
         "EnMAP image and metadata", "EnMAP L1B", "EMIT", "EMIT and its mask", "PRISMA L2D", "PRISMA L2C", "NEON",
         "Tanager", "PACE", "AVIRIS-3", "AVIRIS-NG", "DESIS", "netCDF-3")  # fmt: skip
WITHOUT_MASKS = ("EnMAP image and metadata", "EMIT", "PRISMA L2D", "PRISMA L2C", "NEON", "AVIRIS-3", "AVIRIS-NG",
                 "netCDF-3")  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_map_of_a_product_is_that_of_the_library(broad, tmp_path, kind):
    (server, bundle), (path, files) = broad, write_product(tmp_path / "product", kind)
    response = send(server.client, *files, accept="application/zip")
    assert response.status_code == 200, response.text
    expected = library_map(tmp_path, path, bundle)
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        assert sorted(archive.namelist()) == sorted(expected)
        for name in expected:
            if not name.endswith((".json", ".qml")):
                assert archive.read(name) == expected[name], name
    assert ("mask.tif" in expected) == (kind not in WITHOUT_MASKS)


@pytest.mark.parametrize(("mask", "masks"), [("cirrus,cloud", ("cirrus", "cloud")), ("none", ())])
def test_chosen_masks_are_applied_and_shown_in_the_job(broad, tmp_path, mask, masks):
    (server, bundle), (path, files) = broad, write_product(tmp_path / "product", "EnMAP zip")
    response = send(server.client, *files, accept="application/zip", mask=mask)
    expected = library_map(tmp_path, path, bundle, masks)
    job = response.headers["location"]
    assert server.client.get(job).json()["settings"]["mask"] == [*masks]
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        assert archive.read("classes.tif") == expected["classes.tif"]
    found = server.client.get(f"{job}/results/mask.tif")
    assert (found.status_code, found.content) == ((200, expected["mask.tif"]) if masks else (404, found.content))
    assert masks or found.json()["code"] == "no_such_result"


def test_a_mask_that_a_scene_does_not_have_is_refused(broad, client, tif, tmp_path):
    server, _ = broad
    _, files = write_product(tmp_path / "product", "EnMAP zip")
    for response, words in (
        (send(server.client, *files, mask="saturated"), "no mask saturated; it has cirrus, cloud, defective, shadow"),
        (send(client, tif, mask="cloud"), "no mask cloud; it has no masks"),
        (send(client, tif, mask="fog"), "'fog' is no mask"),
    ):
        assert response.status_code == 422
        assert words in response.json()["detail"]
    assert send(client, tif, mask="none").status_code == 200


def test_a_scene_document_describes_the_product(broad, tmp_path):
    server, _ = broad
    _, files = write_product(tmp_path / "product", "EnMAP zip")
    response = server.client.post("/scenes", content=files[0].read_bytes())
    assert response.status_code == 201, response.text
    scene = server.client.get(response.headers["location"]).json()
    assert (scene["sensor"], scene["level"], scene["product"]) == ("EnMAP", "L2A", ENMAP_STEM)
    assert scene["acquired"].startswith("2022-07-24T10:45:26")
    assert {"band": 10, "wavelength_nm": 1360.0, "reason": "empty"} in scene["dropped_bands"]
    assert scene["masks"] == ["cloud", "shadow"]
    assert scene["mask_shares"]["cloud"] == round(15 / (40 * 33), 6)
    assert server.client.delete(response.headers["location"]).status_code == 204
    assert not list((server.data / "scenes").glob(f"{scene['id']}*"))


def test_an_execution_takes_masks_and_returns_the_mask_raster(broad, tmp_path):
    server, _ = broad
    _, files = write_product(tmp_path / "product", "EMIT and its mask")
    sent = server.client.post("/scenes", files=[("scene", (path.name, path.read_bytes())) for path in files])
    inputs = {"scene": {"href": f"/scenes/{sent.json()['id']}"}, "mask": "cloud,dilated-cloud"}
    body = {"inputs": inputs, "response": "document"}
    document = server.client.post("/processes/classify-scene/execution", json=body).json()
    assert document["mask"]["type"] == "image/tiff"
    with rasterio.open(io.BytesIO(server.client.get(document["mask"]["href"]).content)) as raster:
        assert set(np.unique(raster.read(1))) == {0, 2, 9, 255}  # mapped, cloud, dilated cloud, outside


@pytest.mark.parametrize("kind", ["EMIT", "PRISMA L2C"])
def test_tiles_and_pixels_of_a_swath_are_those_of_its_map(broad, tmp_path, kind):
    (server, _), (path, files) = broad, write_product(tmp_path / "product", kind)
    response = send(server.client, *files)
    job = response.headers["location"]
    tilejson = server.client.get(f"{job}/tilejson.json").json()
    assert tilejson["crs"] == "EPSG:3857"
    row, col = 20, 11  # of the sensor
    lon, lat = (values[row, col] for values in positions(40, 33))
    pixel = server.client.get(f"{job}/pixel", params={"lon": lon, "lat": lat}).json()
    with rasterio.open(io.BytesIO(response.content)) as mapped:
        assert mapped.read(1)[pixel["row"], pixel["col"]] == pixel["class"]["value"]
        assert (tilejson["rows"], tilejson["cols"]) == mapped.shape
    cube, _ = read_cube(open_scene(path))
    np.testing.assert_allclose(pixel["spectrum"]["values"], cube[row, col], rtol=1e-6)
    outside = server.client.get(f"{job}/pixel", params={"row": 0, "col": 0}).json()
    assert outside["is_valid"] is False
    assert set(outside["spectrum"]["values"]) == {None}
    west, south, east, north = tilejson["bounds"]
    assert west < lon < east
    assert south < lat < north
    tile = tilejson["tiles"][0].replace("/classes/", "/scene/")
    zoom = tilejson["minzoom"]
    x = int((lon + 180) / 360 * 2**zoom)
    y = int((1 - np.arcsinh(np.tan(np.radians(lat))) / np.pi) / 2 * 2**zoom)
    shown = server.client.get(tile.format(z=zoom, x=x, y=y))
    assert shown.status_code == 200, shown.text
    picture = next((server.data / "scenes" / scene_of(server, job)).glob("*/*.tif"))
    with rasterio.open(picture) as raster, rasterio.open(io.BytesIO(response.content)) as mapped:
        assert (raster.crs, raster.transform, raster.shape) == (mapped.crs, mapped.transform, mapped.shape)


def scene_of(server, job):
    return server.client.get(job).json()["scene_id"]


@pytest.mark.parametrize("name", ["cube.npy", "cube.mat"])
def test_plain_arrays_are_refused_with_what_to_do(client, name, tmp_path):
    path = tmp_path / name
    np.save(tmp_path / "cube.npy", smooth_cube(4, 4, 5))
    (tmp_path / "cube.npy").rename(path)
    response = send(client, path)
    assert response.status_code == 422
    assert f"{name} is a plain array, which is mapped by `hyperscene classify` only" in response.json()["detail"]


def test_metadata_without_their_image_are_refused(client, tmp_path):
    product, _ = write_product(tmp_path / "product", "EnMAP files")
    metadata = product / f"{ENMAP_STEM}-METADATA.XML"
    response = send(client, metadata)
    assert response.json()["code"] == "scene_incomplete"
    assert f"{metadata.name} lacks its image" in response.json()["detail"]
    metadata.rename(tmp_path / "OTHER-METADATA.XML")
    assert "no product of a known sensor" in send(client, tmp_path / "OTHER-METADATA.XML").json()["detail"]

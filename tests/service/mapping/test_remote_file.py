"""Remote files: allowed addresses, and responses that are not what was requested."""

import os
import socket
import ssl

import numpy as np
import pytest
from rasterio.shutil import copy

from hyperscene.errors import SceneUnreadable, SourceUnreachable
from hyperscene.service.mapping import remote_file, remote_hosts
from hyperscene.service.mapping.gdal import open_dataset
from hyperscene.service.mapping.remote import allowed_path
from hyperscene.service.mapping.remote_file import open_remote
from hyperscene.service.mapping.remote_hosts import is_allowed
from hyperscene.service.mapping.scenes import open_scene, read_cube
from tests.file_host import running_file_host
from tests.proxy import OPENSSL, make_certificate
from tests.scenes import WAVELENGTHS, write_tif

SIZE = 1 << 20
LOOPBACK = ("127.0.0.0/8",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """`plain.tif`, a scene; and `bytes.tif`, any bytes."""
    folder = tmp_path_factory.mktemp("host")
    values = np.random.default_rng(3).uniform(0.05, 0.6, (600, 500, 5)).astype("float32")
    write_tif(folder / "plain.tif", values, wavelengths_nm=WAVELENGTHS)
    (folder / "bytes.tif").write_bytes(os.urandom(SIZE))
    return folder


@pytest.fixture
def host(folder):
    with running_file_host(folder) as host:
        yield host


@pytest.fixture
def impatient(monkeypatch):
    """No second attempts."""
    monkeypatch.setattr(remote_file, "RETRIES_S", ())


def path_of(host, name="bytes.tif", networks=()):
    return allowed_path(f"{host.url}/{name}", (f"{host.url}/",), networks)


@pytest.mark.parametrize("interleave", ["BAND", "PIXEL"])
def test_a_remote_cog_has_the_same_values_as_the_file(host, folder, tmp_path, interleave):
    copy(folder / "plain.tif", folder / "other.tif", driver="COG", blocksize=128, interleave=interleave)
    ours, valid = read_cube(open_scene(path_of(host, "other.tif")))
    local, _ = read_cube(open_scene(folder / "other.tif"))
    np.testing.assert_array_equal(ours, local)
    assert valid.all()


def test_overviews_of_a_remote_cog_are_read_without_the_rest(host, folder):
    copy(folder / "plain.tif", folder / "small.tif", driver="COG", blocksize=128)
    path = path_of(host, "small.tif")
    with open_remote(path) as remote, open_dataset(path, "GTiff", remote) as ours:
        found = ours.read(out_shape=(5, 75, 62))
    with open_dataset(folder / "small.tif", "GTiff") as local:
        np.testing.assert_array_equal(found, local.read(out_shape=(5, 75, 62)))
    assert host.sent_bytes < (folder / "small.tif").stat().st_size / 4


def test_ranges_are_read_in_pieces_and_returned_in_order(host, folder, monkeypatch):
    monkeypatch.setattr(remote_file, "PIECE_BYTES", 1000)
    content = (folder / "bytes.tif").read_bytes()
    ranges = [(5, 1), (100_000, 2500), (0, 0), (7, 1000), (SIZE - 10, 50), (SIZE + 5, 5)]
    with open_remote(path_of(host)) as file:
        assert file.read_ranges(ranges) == [content[first : first + count] for first, count in ranges]
        assert file.read_chunked(remote_file.CHUNK_BYTES - 3, 7) == content[remote_file.CHUNK_BYTES - 3 :][:7]


def test_connections_that_the_host_closed_are_opened_again(host, folder):
    with open_remote(path_of(host)) as file:
        file._idle.queue[0].sock.sendall(b"nonsense\r\n\r\n")  # the host closes it after an error
        assert file.read_ranges([(7, 9)]) == [(folder / "bytes.tif").read_bytes()[7:16]]


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "::1", "fe80::1%eth0", "fd00::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "::", "ff02::1",
    ],
)  # fmt: skip
def test_private_addresses_are_not_allowed(address):
    assert not is_allowed(address, ())


@pytest.mark.parametrize(
    ("address", "networks"),
    [
        ("93.184.215.14", ()),
        ("2606:2800:220:1::1", ()),
        ("64:ff9b::5db8:d70e", ()),
        ("10.1.2.3", ("10.0.0.0/8",)),
        ("fd00::1", ("10.0.0.0/8", "fd00::/8")),
    ],
)
def test_public_and_listed_addresses_are_allowed(address, networks):
    assert is_allowed(address, networks)


def named(host):
    """The same host under a name that is no address: resolvers read 127.1 as 127.0.0.1."""
    url = host.url.replace("127.0.0.1", "127.1")
    return f"{url}/bytes.tif", (f"{url}/",)


def test_a_name_in_a_private_network_is_refused_without_a_request(host):
    with pytest.raises(SceneUnreadable, match="--href-networks"), open_remote(allowed_path(*named(host))):
        pass
    assert not host.requests


def test_a_name_in_a_listed_network_is_read(host):
    with open_remote(allowed_path(*named(host), LOOPBACK)) as file:
        assert file.size_bytes == SIZE


def test_a_name_is_resolved_and_checked_for_each_connection(host, monkeypatch):
    resolve, answers = socket.getaddrinfo, ["127.0.0.1", "169.254.169.254"]

    def rebound(name, port, *rest, **more):
        return resolve(answers.pop(0) if name == "rebound.example" else name, port, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", rebound)
    url = host.url.replace("127.0.0.1", "rebound.example")
    with open_remote(allowed_path(f"{url}/bytes.tif", (f"{url}/",), LOOPBACK)) as file:
        assert len(answers) == 1  # the connection was made to the address that was checked
        file._drop_idle()
        with pytest.raises(SceneUnreadable, match="private network"):
            file.read_ranges([(0, 10)])
    assert len(host.requests) == 1


@pytest.mark.skipif(OPENSSL is None, reason="openssl is not installed")
def test_certificates_are_checked_against_the_name(folder, tmp_path, monkeypatch, impatient):
    make_certificate(tmp_path / "host.crt", tmp_path / "host.key")  # for localhost and 127.0.0.1
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "host.crt", tmp_path / "host.key")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "host.crt"))
    remote_hosts._tls_context.cache_clear()
    with running_file_host(folder, tls) as host:
        url = host.url.replace("127.0.0.1", "localhost")
        with open_remote(allowed_path(f"{url}/bytes.tif", (f"{url}/",))) as file:
            assert file.read_ranges([(0, SIZE)]) == [(folder / "bytes.tif").read_bytes()]
        with pytest.raises(SourceUnreachable, match="certificate"), open_remote(allowed_path(*named(host), LOOPBACK)):
            pass
    remote_hosts._tls_context.cache_clear()


def test_a_file_that_changes_while_it_is_read_is_refused(host):
    host.tags = ["first", "second"]
    with open_remote(path_of(host)) as file:
        with pytest.raises(SceneUnreadable, match="was replaced"):
            file.read_ranges([(0, 10)])
        assert isinstance(file.error, SceneUnreadable)  # for GDAL turns it into one of its own


def test_a_response_that_trickles_is_given_up(host, monkeypatch, impatient):
    monkeypatch.setattr(remote_hosts, "SLOW_S", 0.2)
    host.pause_s = 0.01
    with pytest.raises(SourceUnreachable, match="too slow"), open_remote(path_of(host)):
        pass


def test_a_file_is_not_read_without_end(host, monkeypatch):
    monkeypatch.setattr(remote_file, "SPARE_BYTES", 0)
    with open_remote(path_of(host)) as file, pytest.raises(SceneUnreadable, match="share their bytes"):
        file.read_ranges(5 * [(0, SIZE)])
    assert host.sent_bytes < 5 * SIZE


def test_a_host_that_cannot_be_resolved_is_named(impatient):
    url = "http://nowhere.invalid/"
    with pytest.raises(SourceUnreachable, match=r"nowhere.invalid/a.tif does not respond"):
        open_remote(allowed_path(f"{url}a.tif", (url,))).__enter__()

"""`hyperscene doctor` reports what works, what is broken and how to fix it, within 15 seconds."""

import json
import os
import sqlite3
import time

import pytest

from hyperscene.service import doctor
from hyperscene.service.doctor import Check, can_map, examine
from hyperscene.service.settings import Settings
from tests.command_line import run
from tests.paths import ROOT
from tests.service.mapping.test_engine_health import KILL, packages  # noqa: F401  # a fixture

pytestmark = pytest.mark.slow


def line(document, name):
    return next(check for check in document["checks"] if check["name"] == name)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    done = run("doctor", "--json", "--data", tmp_path_factory.mktemp("doctor") / "data")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_a_healthy_machine_can_map_and_every_check_has_a_status(healthy):
    assert healthy["can_map"] is True
    assert {check["status"] for check in healthy["checks"]} <= {"ok", "slow", "broken"}
    names = [check["name"] for check in healthy["checks"]]
    for name in ("hyperscene", "rasters", "processor", "memory", "data folder's disk", "temporary folder", "open files",
                 "GPU", "demo bundle", "engine openvino", "engine cpu", "mapping", "training", "data folder",
                 "cache folder", "clock", "chromium", "containers"):  # fmt: skip
        assert name in names


def test_engines_and_precisions_have_measured_speeds(healthy):
    assert "patches/s of the demo bundle" in line(healthy, "engine cpu")["found"]
    assert "ms per step" in line(healthy, "training")["found"]


def test_the_output_names_a_broken_engine_with_its_remedy(packages, tmp_path):  # noqa: F811
    done = run("doctor", "--data", tmp_path / "data", **packages(openvino=KILL))
    assert done.returncode == 0  # ONNX Runtime still maps
    text = " ".join(done.stdout.split())  # lines are as wide as the terminal
    assert "broken engine openvino openvino is not used: a probe of it was ended by SIGILL -> " in text
    assert text.endswith("mapping works here")


def test_without_a_working_engine_the_exit_code_is_1(packages, tmp_path):  # noqa: F811
    done = run("doctor", "--json", "--data", tmp_path / "data", **packages(openvino=KILL, onnxruntime=KILL))
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert document["can_map"] is False
    assert line(document, "mapping")["status"] == "broken"


HANG = "import time\ntime.sleep(600)\n"


def test_doctor_ends_within_15_seconds_if_engines_hang(packages, tmp_path):  # noqa: F811
    began = time.monotonic()
    done = run("doctor", "--data", tmp_path / "data", **packages(openvino=HANG, onnxruntime=HANG, torch=HANG))
    assert time.monotonic() - began < 25  # 15 on a machine with nothing else to do
    assert "did not finish" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.fixture
def quick(monkeypatch):
    """Skips the slow probes, which other tests cover."""
    monkeypatch.setattr(doctor, "_engines", lambda deadline: [Check("mapping", "ok", "", is_needed=True)])
    monkeypatch.setattr(doctor, "_training", lambda deadline: [])


def found(settings, name):
    return next(check for check in examine(settings) if check.name == name)


@pytest.mark.usefixtures("quick")
def test_a_damaged_store_is_broken(tmp_path):
    (tmp_path / "hyperscene.sqlite").write_bytes(b"no database" * 1000)
    check = found(Settings(data=tmp_path), "data folder")
    assert check.status == "broken"
    assert "restore it from a backup" in check.remedy
    assert not can_map([check])


@pytest.mark.usefixtures("quick")
def test_a_data_folder_s_jobs_are_counted(tmp_path):
    with sqlite3.connect(tmp_path / "hyperscene.sqlite") as store:
        store.execute("CREATE TABLE jobs (status TEXT)")
        store.executemany("INSERT INTO jobs VALUES (?)", [("successful",), ("successful",), ("running",)])
    check = found(Settings(data=tmp_path), "data folder")
    assert check.status == "ok"
    assert "2 jobs successful" in check.found


@pytest.mark.usefixtures("quick")
def test_too_little_disk_is_broken(tmp_path):
    check = found(Settings(data=tmp_path, min_free_bytes=10**18), "data folder's disk")
    assert check.status == "broken"
    assert "free disk space" in check.remedy


@pytest.mark.usefixtures("quick")
def test_a_clock_behind_its_files_is_broken(tmp_path):
    store = tmp_path / "hyperscene.sqlite"
    sqlite3.connect(store).close()
    os.utime(store, (time.time() + 3600, time.time() + 3600))
    check = found(Settings(data=tmp_path), "clock")
    assert check.status == "broken"
    assert check.remedy == "set the clock"


@pytest.mark.usefixtures("quick")
def test_few_open_files_are_slow(tmp_path, monkeypatch):
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    check = found(Settings(data=tmp_path), "open files")
    assert (check.status, check.remedy) == ("slow", "ulimit -n 4096")


@pytest.mark.usefixtures("quick")
def test_a_broken_amx_is_reported_with_the_cap(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "is_amx_broken", lambda: True)
    monkeypatch.setattr(doctor, "instruction_cap", lambda: "AVX512_CORE_FP16")
    check = found(Settings(data=tmp_path), "processor")
    assert check.status == "slow"
    assert "capped at AVX512_CORE_FP16" in check.found


def test_the_bug_report_template_and_the_operations_page_mention_doctor():
    assert "hyperscene doctor" in (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug_report.md").read_text()
    assert "hyperscene doctor" in (ROOT / "docs" / "deployment.md").read_text()

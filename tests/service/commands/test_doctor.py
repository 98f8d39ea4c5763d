"""`hyperscene doctor` reports what works, what is broken and how to fix it, within 15 seconds."""

import json
import os
import sqlite3
import time
from dataclasses import asdict

import pytest

from hyperscene.model.bundle import DEMO_BUNDLE, read_bundle
from hyperscene.model.probing import machine_key, write_cache
from hyperscene.service import doctor
from hyperscene.service.doctor import Check, can_map, examine
from hyperscene.service.mapping import engine_health
from hyperscene.service.mapping.engine_health import EngineReport, engine_report
from hyperscene.service.settings import Settings
from tests.command_line import run
from tests.programs import ROOT
from tests.service.mapping.test_engine_health import KILL, packages  # noqa: F401  # a fixture

pytestmark = pytest.mark.slow

NO_KERNEL = 'import sys\nsys.modules["hyperscene.service.mapping._fused"] = None\n'  # as if it had not been built


def line(document, name):
    return next(check for check in document["checks"] if check["name"] == name)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """The checks without the command's limit of time, so that a busy machine finishes its probes."""
    checks = examine(Settings(data=tmp_path_factory.mktemp("doctor") / "data"), within_s=240)
    return {"can_map": can_map(checks), "checks": [asdict(check) for check in checks]}


def test_a_healthy_machine_can_map_and_every_check_has_a_status(healthy):
    assert healthy["can_map"] is True
    assert {check["status"] for check in healthy["checks"]} <= {"ok", "slow", "broken"}
    names = [check["name"] for check in healthy["checks"]]
    for name in ("hyperscene", "packages", "rasters", "processor", "memory", "data folder's disk", "temporary folder",
                 "open files", "GPU", "demo bundle", "engine openvino", "engine cpu", "mapping", "training",
                 "data folder", "cache folder", "clock", "chromium", "containers"):  # fmt: skip
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
    broken = packages(openvino=KILL, onnxruntime=KILL, sitecustomize=NO_KERNEL)
    done = run("doctor", "--json", "--data", tmp_path / "data", **broken)
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert document["can_map"] is False
    assert line(document, "mapping")["status"] == "broken"


HANG = "import time\ntime.sleep(600)\n"


def test_doctor_ends_within_15_seconds_if_engines_hang(packages, tmp_path):  # noqa: F811
    began = time.monotonic()
    done = run("doctor", "--data", tmp_path / "data", **packages(openvino=HANG, onnxruntime=HANG, torch=HANG))
    assert time.monotonic() - began < 25  # 15, but the machine may be busy
    assert "did not finish" in done.stdout
    assert "Traceback" not in done.stderr


def test_engines_that_could_not_finish_their_test_are_not_called_broken():
    hung = EngineReport("cpu", failure="cpu is not used: a probe of it did not finish within 1 s", has_hung=True)
    check = doctor._mapping_check([hung])
    assert (check.status, check.found) == ("broken", "no engine finished its test in time")
    assert "run this command again when the machine is less busy" in check.remedy


def report_of(device, monkeypatch, timeouts):
    """Replace the probes: one of OpenVINO hangs."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def probe(name, is_fresh, timeout_s):
        timeouts.append(timeout_s)
        clock[0] += timeout_s if name == device else 0.5
        failure = "it hung" if name == device else None
        return EngineReport(name, "Provider", 100.0, failure, has_hung=failure is not None)

    return probe


def test_an_engine_that_hangs_leaves_time_for_the_others(monkeypatch):
    timeouts = []
    monkeypatch.setattr(doctor, "is_installed", lambda device: device == "openvino")
    monkeypatch.setattr(doctor, "engine_report", report_of("openvino", monkeypatch, timeouts))
    checks = list(doctor._engines(12.0))
    assert can_map(checks)
    assert timeouts == [4.0, 4.0]
    assert doctor._share_s(12.0, 1) == 7.5  # for training


def test_a_busy_machine_keeps_the_earlier_result_of_an_engine(packages, tmp_path, monkeypatch):  # noqa: F811
    for name, value in packages(onnxruntime=HANG).items():
        monkeypatch.setenv(name, value)
    key = machine_key("onnxruntime", "openvino", probe=engine_health._probe_file())
    monkeypatch.setattr(engine_health, "machine_key", lambda *_, **__: key)
    monkeypatch.setattr(engine_health, "_known", {})
    bundle = read_bundle(DEMO_BUNDLE)
    kept = {"device": "cpu", "provider": "ONNX Runtime", "patches_per_s": 123.0}
    write_cache(f"engine-cpu-{bundle.structure[:16]}", key | {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES", "")}, kept)
    report = engine_report("cpu", bundle, is_fresh=True, timeout_s=0.5)
    assert report == EngineReport(**kept, has_hung=True)
    check = doctor._engine_check(report)
    assert check.status == "slow"
    assert "123 patches/s of the demo bundle, measured earlier" in check.found


@pytest.mark.usefixtures("quick")
def test_a_data_folder_that_may_not_be_seen_is_broken(tmp_path, monkeypatch):
    def deny(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(doctor.Path, "exists", lambda path: deny(path) if "hidden" in path.parts else True)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    check = found(Settings(data=tmp_path / "hidden" / "data"), "data folder")
    assert check.status == "broken"
    assert "choose another with --data" in check.remedy


@pytest.mark.usefixtures("quick")
def test_a_check_that_the_system_refuses_does_not_end_the_others(tmp_path, monkeypatch):
    def fail():
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(doctor.tempfile, "gettempdir", fail)
    checks = examine(Settings(data=tmp_path))
    assert "No usable temporary directory" in next(check.found for check in checks if check.name == "system")
    assert "clock" in [check.name for check in checks]


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

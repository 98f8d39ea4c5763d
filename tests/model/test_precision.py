"""The precisions of training are probed in a child process, which may crash, hang or compute wrong results."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import hyperscene as hs
from hyperscene.errors import OptionsUnusable, TrainingFailed
from hyperscene.model import processor
from hyperscene.model.bundle import load_bundle
from hyperscene.model.probing import cache_folder, signal_name
from hyperscene.service.cli import main
from hyperscene.service.mapping.engine_health import EngineReport
from hyperscene.training.fit import precision_health as health
from hyperscene.training.fit.compute import choose_compute, choose_device, choose_precision
from hyperscene.training.fit.failures import explained
from hyperscene.training.fit.precision_health import probe_precisions
from tests import scenes
from tests.command_line import refusal, run

CPU = torch.device("cpu")
FINE = {"seconds": 0.1, "loss": 3.0, "gradient_error": 0.0}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HYPERSCENE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def probe(tmp_path, monkeypatch):
    """Replace the probe's child by a script that prints steps and then does something."""

    def replace(*steps, then=""):
        lines = [json.dumps(FINE | step) for step in steps]
        script = tmp_path / "child.py"
        script.write_text(
            f"import os, signal, sys, time\nopen({str(tmp_path / 'runs')!r}, 'a').write('x')\n"
            f"for line in {lines!r}:\n    print(line, flush=True)\n{then}\n"
        )
        monkeypatch.setattr(health, "PROBE_COMMAND", (sys.executable, str(script)))
        return lambda: (tmp_path / "runs").stat().st_size if (tmp_path / "runs").exists() else 0

    return replace


FLOAT, BRAIN = {"precision": "float32"}, {"precision": "bfloat16", "seconds": 0.05, "gradient_error": 0.004}
ILLEGAL = "os.kill(os.getpid(), signal.SIGILL)"


@pytest.mark.slow
def test_the_real_probe_finds_that_float32_works():
    reports = probe_precisions()
    assert reports["float32"].works
    assert reports["float32"].seconds > 0
    assert choose_precision("auto", CPU) in ("float32", "bfloat16")
    assert choose_precision("float32", CPU) == "float32"


def test_bfloat16_is_chosen_if_it_is_clearly_faster(probe):
    probe(FLOAT, BRAIN)
    assert choose_precision("auto", CPU) == "bfloat16"
    assert (choose_compute("cpu", "auto").device, choose_compute("cpu", "auto").precision) == (CPU, "bfloat16")


def test_bfloat16_is_not_chosen_if_it_is_hardly_faster(probe):
    probe(FLOAT, BRAIN | {"seconds": 0.095})
    assert choose_precision("auto", CPU) == "float32"
    assert choose_precision("bfloat16", CPU) == "bfloat16"


def test_a_probe_killed_by_an_illegal_instruction_rules_out_the_precision(probe):
    probe(FLOAT, then=ILLEGAL)
    said = []
    assert choose_precision("auto", CPU, said.append) == "float32"
    assert said == ["training in float32: a probe of bfloat16 was ended by SIGILL"]
    with pytest.raises(OptionsUnusable, match=r"bfloat16 does not work.*SIGILL.*use --precision auto or float32"):
        choose_precision("bfloat16", CPU)


@pytest.mark.slow
def test_a_probe_that_hangs_rules_out_the_precision_and_is_killed(probe, tmp_path):
    pid = tmp_path / "pid"
    probe(FLOAT, then=f"open({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)")
    began = time.monotonic()
    reports = probe_precisions(timeout_s=2)
    assert time.monotonic() - began < 30
    assert reports["float32"].works
    assert reports["bfloat16"].failure == "did not finish within 2 s"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.parametrize("wrong", [{"gradient_error": 0.7}, {"loss": 3.4}, {"loss": float("nan")}])
def test_a_probe_with_wrong_results_rules_out_the_precision(probe, wrong):
    probe(FLOAT, BRAIN | wrong)
    assert choose_precision("auto", CPU) == "float32"
    with pytest.raises(OptionsUnusable, match=r"disagrees with float32|not finite"):
        choose_precision("bfloat16", CPU)


def test_a_probe_that_fails_without_output_leaves_float32(probe):
    probe(then="sys.exit('no torch here')")
    said = []
    assert choose_precision("auto", CPU, said.append) == "float32"
    assert "failed with exit code 1 (no torch here)" in said[0]


def test_a_processor_on_which_float32_crashes_is_refused_with_the_remedy(probe):
    probe(then=ILLEGAL)
    with pytest.raises(TrainingFailed, match=r"SIGILL.*ONEDNN_MAX_CPU_ISA=AVX2"):
        choose_precision("auto", CPU)


def test_a_result_is_cached_until_the_machine_changes(probe, monkeypatch):
    runs = probe(FLOAT, BRAIN)
    assert [choose_precision("auto", CPU), choose_precision("auto", CPU)] == ["bfloat16"] * 2
    assert runs() == 1
    probe(FLOAT, then=ILLEGAL)
    monkeypatch.setattr("platform.release", lambda: "another kernel")
    assert choose_precision("auto", CPU) == "float32"
    assert runs() == 2


def test_a_failure_is_cached_for_a_day(probe, monkeypatch):
    runs = probe(FLOAT, then=ILLEGAL)
    probe_precisions()
    probe_precisions()
    assert runs() == 1
    tomorrow = time.time() + 90_000
    monkeypatch.setattr(time, "time", lambda: tomorrow)
    probe_precisions()
    assert runs() == 2


@pytest.mark.parametrize("content", ["", "{", "[]", '{"key": 1}', '{"key": {}, "answer": [], "expires": "soon"}'])
def test_a_damaged_cache_is_ignored(probe, content):
    runs = probe(FLOAT, BRAIN)
    probe_precisions()
    next(cache_folder().glob("*.json")).write_text(content)
    probe_precisions()
    assert runs() == 2


def test_without_a_writable_cache_the_probe_runs_every_time(probe, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HYPERSCENE_CACHE", str(tmp_path / "file"))
    runs = probe(FLOAT, BRAIN)
    assert [choose_precision("auto", CPU), choose_precision("auto", CPU)] == ["bfloat16"] * 2
    assert runs() == 2


def test_missing_cuda_is_refused():
    if torch.cuda.is_available():
        assert choose_device("auto").type == "cuda"
    else:
        assert choose_device("auto").type == "cpu"
        with pytest.raises(OptionsUnusable, match="use --device cpu"):
            choose_device("cuda")


# training


def train(folder, *options):
    labels = scenes.quadrants(40, 36)
    scenes.write_tif(folder / "scene.tif", scenes.spectra_of(labels, 6), wavelengths_nm=np.linspace(450, 900, 6))
    scenes.write_tif(folder / "labels.tif", labels)
    return main([
        "train", "--scene", str(folder / "scene.tif"), "--labels", str(folder / "labels.tif"), "-o",
        str(folder / "b.onnx"), "--epochs", "1", "--patch", "4", "--width", "8", "--depth", "1", "--heads", "2",
        "--mlp-width", "8", "--fraction", "0.05", *options,
    ])  # fmt: skip


@pytest.mark.slow
def test_training_continues_after_a_crashed_probe(probe, tmp_path, capsys):
    probe(FLOAT, then=ILLEGAL)
    assert train(tmp_path) == 0
    assert load_bundle(tmp_path / "b.onnx").manifest.training["precision"] == "float32"
    assert "was ended by SIGILL" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("chosen", ["float32", "bfloat16"])
def test_the_chosen_precision_is_used_and_recorded_in_the_manifest(tmp_path, chosen):
    bundles = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        assert train(tmp_path / name, "--precision", chosen) == 0
        bundles.append((tmp_path / name / "b.onnx").read_bytes())
    assert load_bundle(tmp_path / "first" / "b.onnx").manifest.training["precision"] == chosen
    assert bundles[0] == bundles[1]


def test_a_precision_that_crashes_is_refused_in_one_line(probe, tmp_path, capsys):
    probe(FLOAT, then=ILLEGAL)
    assert train(tmp_path, "--precision", "bfloat16") == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "use --precision auto or float32" in error
    assert not (tmp_path / "b.onnx").exists()


@pytest.mark.parametrize(
    ("raised", "remedy"),
    [
        (RuntimeError("could not create a primitive"), "ONEDNN_MAX_CPU_ISA=AVX2"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "smaller --batch"),
        (MemoryError(), "smaller --batch"),
        (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "smaller --batch"),
        (RuntimeError("CUDA error: an illegal memory access"), "--device cpu"),
        (OSError(12, "Cannot allocate memory"), "smaller --batch"),
        (OSError(28, "No space left on device"), "free disk space"),
        (ZeroDivisionError("division by zero"), "report it with the output of hyperscene doctor"),
    ],
)
def test_an_error_of_torch_is_reported_in_one_sentence_with_a_log(tmp_path, capsys, monkeypatch, raised, remedy):
    def fail(*_, **__):
        raise raised

    monkeypatch.setattr("hyperscene.training.fit.network.draw_batches", fail)
    assert train(tmp_path, "--precision", "float32") == 1
    error = capsys.readouterr().err
    last = error.strip().splitlines()[-1]
    assert last.startswith("hyperscene: training failed (")
    assert remedy in last
    assert "Traceback" not in error
    log = tmp_path / "b.onnx.log"
    assert str(log) in last
    assert "Traceback" in log.read_text()
    assert not (tmp_path / "b.onnx").exists()


def test_an_error_without_a_folder_for_the_log_is_still_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    one_sentence = pytest.raises(TrainingFailed, match=r"training failed \(key error 'x'\): report it .*; no log of it")
    with one_sentence, explained("training", tmp_path / "none" / "b.onnx.log"):
        raise KeyError("x")


@pytest.mark.slow
def test_a_torch_that_cannot_be_imported_is_reported_in_one_line(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('broken binary')")
    done = run("train", "--help", PYTHONPATH=str(tmp_path))
    assert "cannot be imported (broken binary): reinstall it" in refusal(done)


def test_training_is_refused_at_once_if_onnx_runtime_would_crash_at_its_end(tmp_path, monkeypatch):
    report = EngineReport("cpu", None, None, "cpu is not used: a probe of it was ended by SIGILL", is_broken=True)
    monkeypatch.setattr("hyperscene.training.fit.export.engine_report", lambda device: report)
    monkeypatch.setattr("hyperscene.training.train.load_labelled_scene", lambda files: pytest.fail("it was read"))
    with pytest.raises(TrainingFailed, match=r"SIGILL.*reinstall onnxruntime"):
        hs.train("scene.tif", "labels.tif", tmp_path / "b.onnx", precision="float32")


@pytest.mark.parametrize("name", ["ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"])
def test_a_result_is_not_kept_for_another_cap(probe, monkeypatch, name):
    runs = probe(FLOAT, BRAIN)
    probe_precisions()
    monkeypatch.setenv(name, "another")
    probe_precisions()
    assert runs() == 2


# the processor


def test_amx_without_kernel_support_is_capped(monkeypatch):
    monkeypatch.setattr(processor, "cpu_flags", lambda: frozenset({"amx_tile", "amx_bf16", "avx512f"}))
    monkeypatch.setattr(processor, "supported_states", lambda: 0x200E7)
    environment = {}
    processor.cap_instruction_set(environment)
    assert environment == {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}


@pytest.mark.parametrize("variable", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
def test_a_cap_set_by_the_user_stays(monkeypatch, variable):
    monkeypatch.setattr(processor, "is_amx_broken", lambda: True)
    environment = {variable: "AVX2"}
    processor.cap_instruction_set(environment)
    assert environment == {variable: "AVX2"}


@pytest.mark.parametrize(("flags", "states"), [({"amx_tile"}, 0x602E7 | 1 << 18), ({"avx512f"}, 0), (set(), 0)])
def test_a_processor_with_working_amx_or_none_is_not_capped(monkeypatch, flags, states):
    monkeypatch.setattr(processor, "cpu_flags", lambda: frozenset(flags))
    monkeypatch.setattr(processor, "supported_states", lambda: states)
    environment = {}
    processor.cap_instruction_set(environment)
    assert environment == {}


def test_the_kernel_reports_its_supported_states():
    if sys.platform.startswith("linux") and "avx" in processor.cpu_flags():
        assert processor.supported_states() & 0b100  # AVX


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        "hyperscene.training.fit.network",
        "hyperscene.model.architecture",
        "hyperscene.service.mapping.openvino_engine",
        "hyperscene.service.jobs.worker",
    ],
)
def test_every_process_is_capped_before_torch_or_openvino_load(first, tmp_path):
    """In a fresh interpreter whose kernel denies AMX, the cap is set before torch is imported."""
    code = f"""
import builtins, ctypes, os, sys
from pathlib import Path
real = Path.read_text
Path.read_text = lambda path, *a, **k: "flags : amx_tile\\n\\n" if str(path) == "/proc/cpuinfo" else real(path, *a, **k)
class Deny:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "openvino"):
            assert os.environ.get("ONEDNN_MAX_CPU_ISA") == "AVX512_CORE_FP16", name
sys.meta_path.insert(0, Deny())
import {first}
assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_FP16"
"""
    environment = {name: value for name, value in os.environ.items() if "MAX_CPU_ISA" not in name}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_signal_has_a_name():
    assert signal_name(signal.SIGILL) == "SIGILL"
    assert signal_name(99) == "signal 99"

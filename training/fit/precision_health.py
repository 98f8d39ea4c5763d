"""Which precisions work for training on this machine, tested in a child process; torch is not imported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from hyperscene.child_process import module_command
from hyperscene.model.probing import ProbeRun, machine_key, read_cached, run_probe, write_cache
from hyperscene.training.fit import precision_probe

Precision = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
CHOICES = ("auto", *PRECISIONS)

PROBE_COMMAND = module_command("hyperscene.training.fit.precision_probe")
PROBE_S = 60.0
CACHE_NAME = "training-precision"
# Time until the probe is repeated: after a crash or wrong results, and after any other failure.
RETRY_S, RETRY_SOON_S = 86400.0, 600.0
# The relative error of a bfloat16 gradient is 0.4 % on an AMD EPYC, with avx512_bf16 and capped at AVX2; that of broken
# implementations is far larger.
LARGEST_GRADIENT_ERROR, LARGEST_LOSS_ERROR = 0.05, 0.05
LEAST_SPEEDUP = 1.1  # over float32, for bfloat16 to be chosen


@dataclass(frozen=True)
class PrecisionReport:
    """The probe's result for one precision."""

    precision: Precision
    seconds: float | None  # of the fastest training step; None if none finished
    failure: str | None  # completes the sentence "bfloat16 ..."; None if it works
    is_crash: bool = False

    @property
    def works(self) -> bool:
        return self.failure is None


def probe_precisions(
    is_fresh: bool = False, timeout_s: float = PROBE_S, command: Sequence[str] | None = None
) -> dict[Precision, PrecisionReport]:
    """The result for each precision, cached for this machine unless `is_fresh`."""
    key = machine_key("torch", probe=precision_probe.__file__)
    kept = None if is_fresh else read_cached(CACHE_NAME, key)
    if kept is not None:
        return {report["precision"]: PrecisionReport(**report) for report in kept}
    run = run_probe(command or PROBE_COMMAND, timeout_s)
    reports = {precision: _judge(precision, run) for precision in PRECISIONS}
    if run.has_hung and timeout_s < PROBE_S:  # it had too little time to count
        return reports
    write_cache(CACHE_NAME, key, [asdict(report) for report in reports.values()], _cache_s(run, reports))
    return reports


def _cache_s(run: ProbeRun, reports: dict[Precision, PrecisionReport]) -> float | None:
    """Seconds for which a result is cached; None for ever."""
    if run.failure is not None and not run.is_crash:
        return RETRY_SOON_S
    return None if all(report.works for report in reports.values()) else RETRY_S


def _judge(precision: Precision, run: ProbeRun) -> PrecisionReport:
    steps = [line for line in run.lines if line.get("precision") == precision]
    reference = next((line["loss"] for line in run.lines if line.get("precision") == "float32"), math.nan)
    if not steps:
        return PrecisionReport(precision, None, run.failure or "was not tried", run.is_crash)
    seconds = min(float(step["seconds"]) for step in steps)
    if run.failure is not None and _was_trying(run) == precision:
        return PrecisionReport(precision, seconds, run.failure, run.is_crash)
    wrong = next((words for step in steps if (words := _disagreement(step, reference))), None)
    return PrecisionReport(precision, seconds, wrong)


def _was_trying(run: ProbeRun) -> Precision:
    """The precision that the child was testing when it ended; they alternate, float32 first."""
    done = [line.get("precision") for line in run.lines]
    return "float32" if not done or done[-1] == "bfloat16" else "bfloat16"


def _disagreement(step: dict[str, Any], reference: float) -> str | None:
    loss, error = float(step["loss"]), float(step["gradient_error"])
    if not math.isfinite(loss) or not math.isfinite(error):
        return "gives values that are not finite"
    if abs(loss - reference) > LARGEST_LOSS_ERROR * abs(reference) or error > LARGEST_GRADIENT_ERROR:
        return f"disagrees with float32 (its gradient differs by {100 * error:.0f} %)"
    return None


def fastest(reports: dict[Precision, PrecisionReport]) -> Precision:
    """bfloat16 if it works and is clearly faster, otherwise float32."""
    exact, coarse = reports["float32"], reports["bfloat16"]
    is_faster = exact.seconds and coarse.seconds and exact.seconds >= LEAST_SPEEDUP * coarse.seconds
    return "bfloat16" if coarse.works and exact.works and is_faster else "float32"

"""`hyperscene doctor`: check this machine, and say how to fix what is broken."""

from __future__ import annotations

import argparse
import os
import shutil
import textwrap
import time
from dataclasses import asdict
from pathlib import Path

from hyperscene.json_text import json_text
from hyperscene.service.cli import DONE, FAILED
from hyperscene.service.doctor import PROBES_S, Check, can_map, examine
from hyperscene.service.settings import Settings

STATUS_WIDTH = 6
NARROW, WIDE = 60, 120


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `hyperscene doctor`."""
    parser.add_argument("--data", type=Path, metavar="DIR", help="the server's data folder (that of `serve`)")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")


def run(options: argparse.Namespace) -> int:
    """Check the machine; exit code 1 if it cannot map."""
    settings = Settings() if options.data is None else Settings(data=options.data)
    checks = examine(settings, PROBES_S - _start_s())
    is_able = can_map(checks)
    if options.json:
        document = {"can_map": is_able, "checks": [asdict(check) for check in checks]}
        print(json_text(document, indent=2))
    else:
        print(_formatted(checks))
        print("mapping works here" if is_able else "mapping does not work here: see the lines marked broken")
    return DONE if is_able else FAILED


def _start_s() -> float:
    """Seconds since this process was started, beyond the one that it takes on an idle machine; 0 if unknown."""
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])  # proc(5), field 22
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):  # not Linux
        return 0.0
    return max(0.0, age_s - 1)


def _formatted(checks: list[Check]) -> str:
    names = max(len(check.name) for check in checks)
    width = max(NARROW, min(WIDE, shutil.get_terminal_size((WIDE, 24)).columns))
    indent = " " * (STATUS_WIDTH + names + 4)
    lines = []
    for check in checks:
        text = f"{check.status:<{STATUS_WIDTH}}  {check.name:<{names}}  {check.found}"
        lines += textwrap.wrap(text, width, subsequent_indent=indent)
        if check.remedy:
            lines += textwrap.wrap(f"-> {check.remedy}", width, initial_indent=indent, subsequent_indent=indent + "   ")
    return "\n".join(lines)

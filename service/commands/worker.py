"""`hyperscene worker`: lends this machine's device to a cluster, until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import re
from pathlib import Path

from model.bundle import DEMO_BUNDLE, load_bundle
from service.cli import DONE
from service.cluster.member import Membership, lend
from service.cluster.tasks import Equipment
from service.commands.options import add_engine_options
from service.errors import WrongUsage
from service.logs import set_up_logs
from service.mapping.engines import make_engine
from service.settings import check_scheduler


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where the scheduler is, what is lent, and how others reach it."""
    parser.add_argument(
        "--scheduler", required=True, metavar="ADDRESS", help="of the cluster, tcp://HOST:PORT or tls://HOST:PORT"
    )
    add_engine_options(parser)
    parser.add_argument("--name", help="for people: in logs and in jobs' histories (host and process)")
    parser.add_argument("--host", help="address of this machine that the service can reach (found out)")
    parser.add_argument("--port", help="port, or range as 9000:9100, that the service can reach (any)")
    parser.add_argument("--ca", type=Path, metavar="FILE", help="certificate of the cluster's authority, for tls://")
    parser.add_argument("--cert", type=Path, metavar="FILE", help="certificate of this worker, for tls://")
    parser.add_argument("--key", type=Path, metavar="FILE", help="private key of that certificate, for tls://")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"), help="(info)")


def run(options: argparse.Namespace) -> int:
    """Join the cluster, and join it again whenever its scheduler comes back."""
    files = (options.ca, options.cert, options.key)
    try:
        check_scheduler(options.scheduler, files)
    except ValueError as error:
        raise WrongUsage(f"--scheduler: {error}") from error
    if options.port is not None and not re.fullmatch(r"\d{1,5}(:\d{1,5})?", options.port):
        raise WrongUsage(f"--port is a number, or a range as 9000:9100, not {options.port}")
    set_up_logs(options.log_level)
    # A device that does not give the demo bundle's own answers is told here, before anybody relies on it.
    engine = make_engine(load_bundle(DEMO_BUNDLE), options.device, options.threads, options.batch)
    equipment = Equipment(engine.device, options.threads, options.batch)  # type: ignore[arg-type]
    asyncio.run(lend(Membership(options.scheduler, equipment, options.name, options.host, options.port, *files)))
    return DONE

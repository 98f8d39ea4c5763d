"""`hyperscene worker`: runs a cluster worker on this machine until it is stopped."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
from pathlib import Path

from hyperscene.errors import WrongUsage
from hyperscene.model.bundle import DEMO_BUNDLE, read_bundle
from hyperscene.service.cli import DONE
from hyperscene.service.cluster.tasks import EngineOptions
from hyperscene.service.cluster.worker_main import WorkerConfig, run_worker
from hyperscene.service.commands.options import add_engine_options
from hyperscene.service.logs import set_up_logs
from hyperscene.service.mapping.devices import UsedPrecision
from hyperscene.service.mapping.engines import choose_engine
from hyperscene.service.mapping.gpu import PROVIDERS
from hyperscene.service.settings import check_scheduler

log = logging.getLogger("hyperscene.worker")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the scheduler's address, the engine, and how others reach the worker."""
    parser.add_argument(
        "--scheduler",
        required=True,
        metavar="ADDRESS",
        help="the cluster's scheduler, tcp://HOST:PORT or tls://HOST:PORT",
    )
    add_engine_options(parser)
    parser.add_argument("--name", help="name in logs and job histories (host and process id)")
    parser.add_argument("--host", help="address of this machine that the service can reach (detected)")
    parser.add_argument("--port", help="port, or range such as 9000:9100, that the service can reach (any)")
    parser.add_argument("--ca", type=Path, metavar="FILE", help="certificate of the cluster's authority, for tls://")
    parser.add_argument("--cert", type=Path, metavar="FILE", help="certificate of this worker, for tls://")
    parser.add_argument("--key", type=Path, metavar="FILE", help="private key of that certificate, for tls://")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"), help="(info)")


def run(options: argparse.Namespace) -> int:
    """Join the cluster, and join again whenever its scheduler restarts."""
    files = (options.ca, options.cert, options.key)
    try:
        check_scheduler(options.scheduler, files)
    except ValueError as error:
        raise WrongUsage(f"--scheduler: {error}") from error
    if options.port is not None and not re.fullmatch(r"\d{1,5}(:\d{1,5})?", options.port):
        raise WrongUsage(f"--port must be a number, or a range such as 9000:9100, not {options.port}")
    os.umask(0o077)  # files of the cluster's library are closed to other users
    set_up_logs(options.log_level)
    # A device that fails the demo bundle's check is refused here, before it joins.
    # Each worker would choose by its own speed, and a map by several workers would have two precisions.
    precision: UsedPrecision = "float32" if options.precision == "auto" else options.precision
    engine_options = EngineOptions(options.device, options.threads, options.batch, precision)
    demo = read_bundle(DEMO_BUNDLE)
    engine, left_out = choose_engine(demo, options.device, options.threads, options.batch, precision)
    for reason in left_out:
        log.warning("%s", reason)
    address = (options.name, options.host, options.port)
    config = WorkerConfig(options.scheduler, engine_options, engine.device in PROVIDERS, *address, *files)
    asyncio.run(run_worker(config))
    return DONE

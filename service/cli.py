"""The command line: dispatches to the commands and prints their errors in one line."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version

from hyperscene.errors import ServiceError, WrongUsage
from hyperscene.model.bundle import BundleRefused
from hyperscene.model.spectra import BandMismatch

DONE, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True)
class Command:
    """A command's help text, and the extra that installs its packages."""

    help: str
    extra: str


# The module service.commands.<name> is imported only when its command runs, so that serving never loads torch.
COMMANDS = {
    "demo": Command("start a server, map a synthetic scene, and show the result", "cpu"),
    "classify": Command("map a scene: classes, probabilities, confidence", "cpu"),
    "serve": Command("run the service: POST a scene, get a map", "cpu"),
    "worker": Command("join a cluster that maps scenes for a service", "cpu,cluster"),
    "train-worker": Command("train models for a service that shares its data folder", "train,cpu"),
    "adopt": Command("rebuild a damaged or lost store from the data folder", "cpu"),
    "inspect": Command("show the metadata of a scene or a bundle", "cpu"),
    "doctor": Command("check this machine, and say how to fix what is broken", "cpu"),
    "bench": Command("measure this machine's speed, interleaved, as ratios", "cpu"),
    "synth": Command("create a synthetic georeferenced scene with known classes", "cpu"),
    "train": Command("train a bundle from a scene and a few labels", "train,cpu"),
    "evaluate": Command("measure a bundle's accuracy on labelled pixels", "train,cpu"),
    "assess": Command("draw a sample of a map, and estimate accuracy and areas from it", "cpu"),
    "report": Command("write a page about a map that a person can print and sign", "cpu"),
    "vectors": Command("write a map's classes as polygons", "cpu"),
    "zones": Command("count a map's classes in polygons, with areas and intervals", "cpu"),
    "compare": Command("find what changed between two maps of the same place", "cpu"),
    "study": Command("repeat the paper's experiments on a labelled scene, with a report", "train,study,cpu"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns 0 done, 1 refused or failed, 2 wrong usage, 130 stopped by Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    with suppress(ValueError):  # signal handlers can be set in the main thread only
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: unfinished files are removed
    try:
        status = _dispatch(arguments)
        sys.stdout.flush()  # raises here, where the error can be printed, if the disk is full
        return status
    except (ServiceError, BundleRefused, BandMismatch) as error:
        print(f"hyperscene: {_one_line(str(error))}", file=sys.stderr)
        return MISUSED if isinstance(error, WrongUsage) else FAILED
    except KeyboardInterrupt:
        print("hyperscene: stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of standard output ended, for example `| head`
        sys.stderr.close()
        return FAILED
    except OSError as error:  # for example standard output on a full disk
        print(f"hyperscene: {_one_line(str(error))}", file=sys.stderr)
        return FAILED


def _dispatch(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="hyperscene", description="Map whole hyperspectral scenes.")
    parser.add_argument("--version", action="version", version=f"hyperscene {version('hyperscene')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((word for word in arguments if word in COMMANDS), None)
    for name, command in COMMANDS.items():
        options = commands.add_parser(
            name, help=command.help, description=f"{command.help[0].upper()}{command.help[1:]}."
        )
        if name == chosen:
            try:
                module = import_module(f"hyperscene.service.commands.{name.replace('-', '_')}")
            except ModuleNotFoundError as error:
                raise MissingExtra(
                    f"{name} needs the package {error.name}: pip install 'hyperscene[{command.extra}]'"
                ) from error
            except Exception as error:  # a package that is installed but damaged; torch raises many types
                package = getattr(error, "name", None) or "a package"
                raise MissingExtra(
                    f"{package} cannot be imported ({str(error) or type(error).__name__}): reinstall it, "
                    f"pip install --force-reinstall 'hyperscene[{command.extra}]'"
                ) from error
            module.add_options(options)
            options.set_defaults(run=module.run, typed=tuple(arguments))
    parsed = parser.parse_args(arguments)
    status: int = parsed.run(parsed)
    return status


class MissingExtra(ServiceError):
    """A package that the command needs is not installed."""

    code = "missing_extra"
    status = 500


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main())

"""The command line: finds the command, turns refusals into one line, and knows nothing of what commands do."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version

from model.bundle import BundleRefused
from model.spectra import BandMismatch
from service.errors import ServiceError, WrongUsage

DONE, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True)
class Command:
    """A command's one-line help, and the extra that holds what it imports."""

    help: str
    extra: str


# A command's module, service.commands.<name>, is imported when it is called: serving never loads torch.
COMMANDS = {
    "demo": Command("serve, map a synthetic scene, and show what came of it", "cpu"),
    "classify": Command("map a scene: classes, probabilities, confidence", "cpu"),
    "serve": Command("run the service: POST a scene, get a map", "cpu"),
    "worker": Command("lend this machine to a cluster that maps for a service", "cpu,cluster"),
    "inspect": Command("show what is understood of a scene or a bundle", "cpu"),
    "bench": Command("measure this machine's speed, interleaved, as ratios", "cpu"),
    "synth": Command("make a synthetic georeferenced scene with a known truth", "cpu"),
    "train": Command("learn a bundle from a scene and a few labels", "train,cpu"),
    "evaluate": Command("score a bundle on labelled pixels", "train,cpu"),
    "study": Command("repeat the paper's experiments on a labelled scene, with a report", "train,cpu"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 done, 1 refused or failed, 2 wrong usage, 130 stopped by Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    with suppress(ValueError):  # not in a thread: there nobody is told to end
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: nothing half-written is left
    try:
        status = _dispatch(arguments)
        sys.stdout.flush()  # here, where a full disk can still be told
        return status
    except (ServiceError, BundleRefused, BandMismatch) as error:
        print(f"hyperscene: {_one_line(str(error))}", file=sys.stderr)
        return MISUSED if isinstance(error, WrongUsage) else FAILED
    except KeyboardInterrupt:
        print("hyperscene: stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        sys.stderr.close()
        return FAILED
    except OSError as error:  # standard output on a full disk, say
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
                module = import_module(f"service.commands.{name}")
            except ModuleNotFoundError as error:
                raise MissingExtra(
                    f"{name} needs the package {error.name}: pip install 'hyperscene[{command.extra}]'"
                ) from error
            module.add_options(options)
            options.set_defaults(run=module.run, typed=tuple(arguments))
    parsed = parser.parse_args(arguments)
    status: int = parsed.run(parsed)
    return status


class MissingExtra(ServiceError):
    """A command whose packages were not installed."""

    code = "missing_extra"
    status = 500


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main())

"""The ``edgepfl`` command: finds its subcommands through entry points and imports only the one that is called."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

import edgepfl
from edgepfl.errors import EdgepflError

GROUP = "edgepfl.commands"
CLOSED = 141  # the exit status of a process that SIGPIPE ends
OURS = {"coordinator", "device_agent", "edgepfl", "exporters", "simulators"}
SUMMARIES = {
    "agent": "run a device's agent (on the board)",
    "aggregator": "do a coordinator's mathematics, on several GPUs or hosts",
    "algorithms": "list the algorithms and published hyperparameters, or tell all about one",
    "bench": "measure a training step on this machine: time and memory, side by side",
    "build-runner": "build the library that runs ExecuTorch graphs without torch",
    "compare": "train with several algorithms on the same fleet and print one table",
    "coordinator": "run the coordinator service",
    "data": "list the data sets, and show who has what of one, in numbers and pictures",
    "demo": "broker, coordinator and 20 agents on this machine, and a report",
    "doctor": "check on this device that a bundle's graphs compute what they should",
    "emulate": "emulate a fleet: real agents by the thousand, and whatever goes wrong in the field",
    "estimate": "tell how many bytes a run will move, before anyone trains",
    "export": "make a bundle of training graphs from a model and an algorithm",
    "faults": "stand between clients and a broker, and be a bad network",
    "hub": "run a hub: a coordinator to its devices and a device to its parent",
    "inspect": "tell what a bundle holds, and which operators run where",
    "model": "write the model that a device ended with to a file",
    "privacy": "plan differential privacy, and tell what a run has spent of it",
    "profiles": "list the kinds of devices that can be emulated, with the source of each number",
    "recover": "train FPFC on devices of known clusters and tell how well it finds them",
    "reproduce": "run a published experiment and print its numbers next to the published ones",
    "run": "start, watch or stop a run of a coordinator",
    "simulate": "train 100,000 devices on one machine, many in one call, for research",
    "soak": "train a large emulated fleet for half an hour among faults, and tell what leaks or is lost",
    "traces": "tell who of an emulated fleet is online, charging and idle at which hour",
}


def main(arguments: list[str] | None = None) -> int:
    """Run one subcommand; its exit status; of an error that the user can mend, that error's, mostly 2."""
    words = sys.argv[1:] if arguments is None else arguments
    commands = {point.name: point for point in entry_points(group=GROUP)}
    if words[:1] == ["--version"]:
        print(f"edgepfl {edgepfl.__version__}")
        return 0
    if not words or words[0] in {"-h", "--help", "help"}:
        print(_usage(commands))
        return 0
    if words[0] not in commands:
        print(f"edgepfl: there is no command {words[0]!r}\n\n{_usage(commands)}", file=sys.stderr)
        return 2
    return _call(commands[words[0]], words[1:])


def _call(point: EntryPoint, words: list[str]) -> int:
    try:
        command: Callable[[list[str]], int] = point.load()
        return _flushed(command(words))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in OURS:
            raise
        print(
            f"edgepfl {point.name}: needs the package {error.name!r}, which is not installed. "
            f"Install it with: pip install 'edgepfl[{_extra(point)}]'",
            file=sys.stderr,
        )
    except EdgepflError as error:
        print(f"edgepfl {point.name}: {error}", file=sys.stderr)
        return error.status
    except BrokenPipeError:  # whoever read our output has seen enough, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED
    except KeyboardInterrupt:
        print(f"edgepfl {point.name}: stopped", file=sys.stderr)
        return 130
    return 2


def _flushed(status: int) -> int:
    """The status, with all that was printed on its way: here an error of that can still be told."""
    sys.stdout.flush()
    return status


def _extra(point: EntryPoint) -> str:
    return {"coordinator": "coordinator", "exporters": "export"}.get(point.module.partition(".")[0], "sim")


def _usage(commands: dict[str, EntryPoint]) -> str:
    lines = [f"  {name:<12} {SUMMARIES.get(name, '')}" for name in sorted(commands)]
    return "\n".join(
        [
            "usage: edgepfl COMMAND [--help]",
            "",
            "Personalised federated learning on real devices.",
            "",
            *lines,
        ]
    )


if __name__ == "__main__":
    sys.exit(main())

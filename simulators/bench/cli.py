"""``edgepfl bench``: one training step, the zoo's models, the server, fleets of real agents, and secure aggregation."""

from __future__ import annotations

import argparse

from simulators.bench import (
    fleet_command,
    fusion_command,
    peers_command,
    reduction_command,
    secagg_command,
    step_command,
    zoo_command,
)


def main(arguments: list[str]) -> int:
    """Run a benchmark."""
    parser = argparse.ArgumentParser(prog="edgepfl bench", description="Measure on this machine.")
    commands = parser.add_subparsers(dest="what", required=True)
    step_command.add(commands)
    zoo_command.add(commands)
    reduction_command.add(commands)
    fusion_command.add(commands)
    fleet_command.add(commands)
    peers_command.add(commands)
    secagg_command.add(commands)
    words = parser.parse_args(arguments)
    status: int = words.run(words)
    return status

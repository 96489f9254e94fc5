"""The job in Flower's simulation runtime: Ray actors, the message API, the strategy FedAvg."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from simulators.bench.peer_programs import common

FOLDER = Path(os.environ["EDGEPFL_PEERS_FOLDER"])

client = ClientApp()
server = ServerApp()


@client.train()  # type: ignore[untyped-decorator]  # Flower is in another environment than types are checked in
def train(message: Message, context: Context) -> Message:
    """One device's round."""
    torch.set_num_threads(1)
    job, device = common.job_in(FOLDER), int(context.node_config["partition-id"])
    net = common.Net(job)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = common.data_in(FOLDER)
    common.train(net, x[device], y[device], job)
    content = RecordDict(
        {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(y[device])})}
    )
    return Message(content=content, reply_to=message)


class Stamped(FedAvg):  # type: ignore[misc]  # likewise
    """FedAvg that notes when its rounds end."""

    stamps: list[float]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:  # noqa: ANN401  as Flower has it
        """See FedAvg.

        Raises:
            RuntimeError: not every device's report is there, so that the model would be another one.
        """
        replies = list(replies)
        failed = [str(each.error.reason) for each in replies if each.has_error()]
        if failed or len(replies) != self.min_train_nodes:
            raise RuntimeError(f"round {server_round}: {len(replies)} replies, {len(failed)} failed: {failed[:1]}")
        aggregated = super().aggregate_train(server_round, replies)
        self.stamps.append(common.now())
        return aggregated


@server.main()  # type: ignore[untyped-decorator]  # likewise
def main(grid: Grid, context: Context) -> None:  # noqa: ARG001  Flower's signature
    """All rounds."""
    job = common.job_in(FOLDER)
    # A share of the nodes is a share of those that are there by then, which may be fewer than all.
    everyone = {"min_train_nodes": job.devices, "min_available_nodes": job.devices}
    strategy = Stamped(fraction_train=1.0, fraction_evaluate=0.0, **everyone)
    strategy.stamps = []
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(common.first_in(FOLDER)), num_rounds=job.rounds)
    common.finish(FOLDER, "flower", strategy.stamps, result.arrays.to_torch_state_dict(), ("flwr", "ray", "torch"))


if __name__ == "__main__":
    wanted = common.job_in(FOLDER)
    run_simulation(
        server,
        client,
        num_supernodes=wanted.devices,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": wanted.workers}},
    )

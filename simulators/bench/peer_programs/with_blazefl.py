"""The job in BlazeFL: its own FedAvg on a pool of threads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from blazefl.contrib import FedAvgBaseServerHandler, FedAvgThreadPoolClientTrainer
from blazefl.core import ModelSelector, PartitionedDataset
from torch.utils.data import DataLoader, Dataset, TensorDataset

from simulators.bench.peer_programs import common

FOLDER = Path(os.environ["EDGEPFL_PEERS_FOLDER"])


class Selector(ModelSelector):  # type: ignore[misc]  # BlazeFL is in another environment than types are checked in
    """Makes the network."""

    def select_model(self, model_name: str) -> torch.nn.Module:  # noqa: ARG002  there is one
        """A fresh one, whose parameters are replaced."""
        return common.Net(common.job_in(FOLDER))


class Data(PartitionedDataset):  # type: ignore[misc]  # likewise
    """Every device's examples."""

    def __init__(self) -> None:
        x, y = common.data_in(FOLDER)
        self._sets = [TensorDataset(x[device], y[device]) for device in range(len(x))]

    def get_dataset(self, type_: str, cid: int | None) -> Dataset[Any]:  # noqa: ARG002  BlazeFL's signature
        """One device's."""
        return self._sets[cid or 0]

    def set_dataset(self, type_: str, cid: int | None, dataset: Dataset[Any]) -> None:
        """Nothing is kept: examples do not change."""

    def get_dataloader(
        self, type_: str, cid: int | None, batch_size: int | None, generator: torch.Generator | None = None
    ) -> DataLoader[Any]:
        """One device's, all in one minibatch."""
        return DataLoader(self.get_dataset(type_, cid), batch_size=batch_size, generator=generator)


def main() -> None:
    """All rounds."""
    torch.set_num_threads(1)  # there are threads enough
    job = common.job_in(FOLDER)
    shared = {"model_selector": Selector(), "model_name": "net", "dataset": Data(), "device": "cpu"}
    sizes = {"num_clients": job.devices, "batch_size": job.batch, "seed": job.seed}
    server = FedAvgBaseServerHandler(global_round=job.rounds, sample_ratio=1.0, **shared, **sizes)
    server.model.load_state_dict(common.first_in(FOLDER))
    trainer = FedAvgThreadPoolClientTrainer(epochs=job.steps, lr=job.lr, num_parallels=job.workers, **shared, **sizes)
    stamps = []
    while not server.if_stop():
        devices = server.sample_clients()
        trainer.local_process(server.downlink_package(), devices)
        for package in trainer.uplink_package():
            server.load(package)
        stamps.append(common.now())
    common.finish(FOLDER, "blazefl", stamps, server.model.state_dict(), ("blazefl", "torch"))


if __name__ == "__main__":
    main()

"""The job in pfl-research: FederatedAveraging on its simulated backend, one process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor

from simulators.bench.peer_programs import common

FOLDER = Path(os.environ["EDGEPFL_PEERS_FOLDER"])


class Judged(common.Net):
    """The network with the two methods that pfl asks for."""

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:  # noqa: A002, ARG002, FBT001, FBT002  pfl's
        """What is minimised."""
        return torch.nn.functional.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Any]:  # noqa: A002, ARG002, FBT001, FBT002
        """Nothing is evaluated."""
        return {}


class Stamps(TrainingProcessCallback):  # type: ignore[misc]  # pfl is in another environment than types are checked in
    """Notes when rounds end."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
        """See pfl."""
        self.stamps.append(common.now())
        return False, Metrics()


def main() -> None:
    """All rounds."""
    job = common.job_in(FOLDER)
    torch.set_num_threads(1)  # the products are small: threads would wait for each other
    x, y = common.data_in(FOLDER)
    net = Judged(job)
    net.load_state_dict(common.first_in(FOLDER))
    model = PyTorchModel(
        model=net,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
    )
    sampler = get_user_sampler("minimize_reuse", list(range(job.devices)))
    data = FederatedDataset(lambda device: Dataset(raw_data=[x[device], y[device]]), sampler)
    stamps = Stamps()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=job.rounds + 1,
            train_cohort_size=job.devices,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_batch_size=job.batch, local_num_epochs=job.steps, local_learning_rate=job.lr
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=job.batch),
        callbacks=[stamps],
    )
    final = {name: tensor.detach().cpu() for name, tensor in model.pytorch_model.state_dict().items()}
    common.finish(FOLDER, "pfl", stamps.stamps, final, ("pfl", "torch"))


if __name__ == "__main__":
    main()

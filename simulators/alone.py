"""The baseline that needs no network: every device trains alone.

It uses FedAvg's graphs, each device as a fleet of one, with the minibatches and as many steps as in the federated run,
so it is plain local SGD at equal local work.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from coordinator.config import RunConfig
from device_agent.data import Examples
from device_agent.evaluate import evaluate
from device_agent.interpreter import Interpreter, Start
from device_agent.runners.onnx import OnnxRunner
from edgepfl.bundle import Bundle
from edgepfl.seeds import derive
from edgepfl.tree import Tree


def accuracies(
    bundle: Bundle, devices: Mapping[str, Examples], config: RunConfig, hyper: Mapping[str, float], threads: int = 2
) -> dict[str, float]:
    """Each device's test accuracy after training alone.

    Args:
        bundle: of FedAvg.
        devices: each device's data.
        config: rounds, steps and seed.
        hyper: FedAvg's step size.
        threads: devices to train at once.
    """
    interpreter = Interpreter(bundle.plan, bundle.model, OnnxRunner(bundle))
    train = partial(_train, interpreter, bundle.model, config, hyper)
    with ThreadPoolExecutor(threads) as pool:
        return dict(zip(devices, pool.map(train, devices, devices.values()), strict=True))


def _train(
    interpreter: Interpreter,
    model: Tree,
    config: RunConfig,
    hyper: Mapping[str, float],
    device: str,
    examples: Examples,
) -> float:
    fit = examples.fit(interpreter.plan)
    w = model
    for number in range(1, config.rounds + 1):
        seed = derive(derive(config.seed, "round", number), device)  # as the coordinator and the agent derive it
        result = interpreter.train(Start({"w": w}, None, hyper, seed, number), fit, config.steps)
        w = w + result.upload["delta"]
    return evaluate(interpreter, Start({"w": w}, None, hyper, 0), fit, 0).metrics["accuracy.global"]

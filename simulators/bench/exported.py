"""The step that a device takes: a bundle's graph, each output fed back as the next step's input.  No torch."""

from __future__ import annotations

import numpy as np

from device_agent.runners import Array, Runner
from device_agent.runners.executorch import ExecutorchRunner, ExecutorchSettings
from device_agent.runners.onnx import OnnxRunner, OnnxSettings
from edgepfl import bundle as bundles
from edgepfl.bundle import Bundle
from edgepfl.plan import Entry, Kind, Plan, Port
from simulators.bench.job import Job, Step

LOSS = "metric:loss"
"""The port of the loss."""


def onnx(job: Job) -> Step:
    """On stock ONNX Runtime, as an agent runs it."""
    bundle = _bundle(job)
    return _loop(bundle, OnnxRunner(bundle, OnnxSettings(threads=job.threads)))


def executorch(job: Job) -> Step:
    """On ExecuTorch, as an agent runs it.

    Raises:
        ConfigError: its library is not built.
    """
    bundle = _bundle(job)
    return _loop(bundle, ExecutorchRunner(bundle, ExecutorchSettings(threads=job.threads)))


def _bundle(job: Job) -> Bundle:
    return bundles.unpack(job.bundle.read_bytes(), golden=False)


def _loop(bundle: Bundle, runner: Runner) -> Step:
    ports = bundle.plan.graphs[Entry.STEP]
    feeds = {port.name: _value(port, bundle) for port in ports.inputs}
    inputs = {(port.group, port.tensor): port.name for port in ports.inputs if port.kind is Kind.SLOT}
    back = {
        port.name: inputs[port.group, port.tensor]
        for port in ports.outputs
        if port.kind is Kind.SLOT and (port.group, port.tensor) in inputs
    }

    def step() -> float:
        results = runner.run(Entry.STEP, feeds)
        for output, name in back.items():
            feeds[name] = results[output]
        return float(results[LOSS])

    return step


def _value(port: Port, bundle: Bundle) -> Array:
    """Something fit to train from: every slot is the model where it can be."""
    rng = np.random.default_rng(0)
    match port.kind:
        case Kind.HYPER:
            return np.asarray(_hyper(bundle.plan, port), np.float32)
        case Kind.SLOT if port.tensor in bundle.model and bundle.model[port.tensor].shape == port.spec.shape:
            return np.asarray(bundle.model[port.tensor])
        case Kind.BATCH if port.group == "weight":
            return np.ones(port.spec.shape, np.float32)
        case Kind.BATCH if port.spec.dtype == "float32":
            return rng.standard_normal(port.spec.shape, np.float32)
        case Kind.BATCH:
            return rng.integers(0, 7, port.spec.shape)  # every model has at least 7 classes
    return np.zeros(port.spec.shape, port.spec.dtype)


def _hyper(plan: Plan, port: Port) -> float:
    return plan.hyper[port.group] / 5  # made-up labels cannot be learned: a small step keeps the numbers finite

"""Two problems with gradients written twice: for torch as the algorithms see it, for NumPy by hand.

All parameters of a model are one flat vector in the NumPy programs, in the order of the tensors' names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from edgepfl.tree import Tree

Vector: TypeAlias = NDArray[np.float64]
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Draw:
    """The rows of one minibatch; rows of weight 0 are padding."""

    x: Vector
    y: NDArray[np.int64]
    weight: Vector


@dataclass
class Batch:
    """A draw as a minibatch of torch tensors, with its device's model and loss."""

    x: tuple[torch.Tensor, ...]
    y: torch.Tensor
    weight: torch.Tensor
    forward: Callable[[Tree, torch.Tensor], torch.Tensor]  # parameters, inputs -> outputs
    judge: Callable[[torch.Tensor, Batch], torch.Tensor]  # outputs -> the loss of each row

    def outputs(self, params: Tree) -> torch.Tensor:
        return self.forward(params, self.x[0])

    def losses(self, outputs: torch.Tensor) -> torch.Tensor:
        return self.judge(outputs, self)

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        return (self.weight * values).sum() / self.weight.sum().clamp(min=1e-300)

    def mixture(self, outputs: Sequence[torch.Tensor], weights: torch.Tensor) -> torch.Tensor:
        odds = [weight * torch.softmax(each, 1) for weight, each in zip(weights, outputs, strict=True)]
        return torch.log(torch.stack(odds).sum(0))

    def represent(self, params: Tree) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError

    def judge_head(self, params: Tree, z: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def parts(self, count: int) -> tuple[Batch, ...]:
        rows = [slice(i, None, count) for i in range(count)]
        return tuple(
            replace(self, x=tuple(x[each] for x in self.x), y=self.y[each], weight=self.weight[each]) for each in rows
        )

    def grad(self, params: Tree) -> Tree:
        return self.value_and_grad(lambda tree: self.mean(self.losses(self.outputs(tree))), params)[1]

    def value_and_grad(self, objective: Callable[[Tree], torch.Tensor], params: Tree) -> tuple[torch.Tensor, Tree]:
        leaves = params.map(lambda tensor: tensor.detach().clone().requires_grad_())
        value = objective(leaves)
        gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return value.detach(), Tree(dict(zip(leaves, gradients, strict=True)))


class Problem(Protocol):
    """Devices with data of their own; ``shapes`` are the model's."""

    shapes: Shapes
    personal: tuple[str, ...]
    examples: dict[str, int]

    def start(self) -> Vector: ...
    def draw(self, device: str, rows: list[int], padding: int = 0) -> Draw: ...
    def batch(self, device: str, draw: Draw) -> Batch: ...
    def gradient(self, device: str, w: Vector, draw: Draw) -> Vector: ...


def tree_of(w: Vector, shapes: Shapes) -> Tree:
    """The torch tree of a flat vector."""
    tensors, at = {}, 0
    for name in sorted(shapes):
        size = int(np.prod(shapes[name]))
        tensors[name] = torch.tensor(w[at : at + size].reshape(shapes[name]))
        at += size
    return Tree(tensors)


def flat(tree: Tree) -> Vector:
    """The flat vector of a torch tree."""
    parts = [np.asarray(tensor.numpy(), dtype=np.float64).ravel() for tensor in tree.values()]
    return np.concatenate([np.zeros(0), *parts])


class Quadratic:
    """``f_k(w) = mean_i 1/2 (w - c_ki)' A_k (w - c_ki)``, in 6 parameters; ``b_k`` is the mean of its centres."""

    shapes: Shapes = {"body": (4,), "head": (1, 2)}  # noqa: RUF012  a constant
    personal: tuple[str, ...] = ("head",)

    def __init__(self, devices: int, *, seed: int = 0, spectrum: tuple[float, float] = (0.5, 2.0)) -> None:
        rng = np.random.default_rng(seed)
        self.examples = {f"pi-{k}": int(n) for k, n in enumerate(rng.permutation(devices) * 3 + 5)}
        self.A = {device: _positive(rng, spectrum) for device in self.examples}
        self.centres = {k: rng.normal(size=6) * 2 + rng.normal(size=(n, 6)) for k, n in self.examples.items()}
        self.b = {device: centres.mean(0) for device, centres in self.centres.items()}
        self._start = rng.normal(size=6)

    def start(self) -> Vector:
        return self._start

    def draw(self, device: str, rows: list[int], padding: int = 0) -> Draw:
        return _padded(self.centres[device][rows], np.zeros(len(rows), np.int64), padding)

    def whole(self, device: str) -> Batch:
        """The full batch, whose gradient is ``A_k (w - b_k)``."""
        return self.batch(device, self.draw(device, list(range(self.examples[device]))))

    def batch(self, device: str, draw: Draw) -> Batch:
        A = torch.tensor(self.A[device])

        def apart(params: Tree, centres: torch.Tensor) -> torch.Tensor:
            return torch.cat([tensor.reshape(-1) for tensor in params.values()]) - centres

        def judge(outputs: torch.Tensor, b: Batch) -> torch.Tensor:  # noqa: ARG001  the centres are inputs
            return ((outputs @ A) * outputs).sum(1) / 2

        return _torch_batch(draw, apart, judge)

    def gradient(self, device: str, w: Vector, draw: Draw) -> Vector:
        centre = (draw.weight[:, None] * draw.x).sum(0) / draw.weight.sum()
        gradient: Vector = self.A[device] @ (w - centre)
        return gradient

    def minimiser(self, weights: Mapping[str, float]) -> Vector:
        """``argmin sum_k p_k f_k``."""
        left = sum((weights[k] * A for k, A in self.A.items()), np.zeros((6, 6)))
        right = sum((weights[k] * A @ self.b[k] for k, A in self.A.items()), np.zeros(6))
        return np.linalg.solve(left, right)

    def prox(self, device: str, z: Vector, mu: float) -> Vector:
        """``argmin f_k + mu/2 |w - z|^2``."""
        A = self.A[device]
        return np.linalg.solve(A + mu * np.eye(6), A @ self.b[device] + mu * z)


class Softmax:
    """Softmax regression of 3 classes on 4 features; each device has features of its own and few examples."""

    shapes: Shapes = {"bias": (3,), "weight": (4, 3)}  # noqa: RUF012  a constant
    personal: tuple[str, ...] = ("bias",)

    def __init__(self, devices: int, *, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.examples = {f"pi-{k}": int(n) for k, n in enumerate(rng.permutation(devices) * 4 + 6)}
        self.x = {k: rng.normal(size=(n, 4)) + rng.normal(size=4) for k, n in self.examples.items()}
        self.y = {k: rng.integers(0, 3, n) for k, n in self.examples.items()}
        self._start = rng.normal(size=15)

    def start(self) -> Vector:
        return self._start

    def draw(self, device: str, rows: list[int], padding: int = 0) -> Draw:
        return _padded(self.x[device][rows], self.y[device][rows], padding)

    def batch(self, device: str, draw: Draw) -> Batch:  # noqa: ARG002  here a device is its data alone
        def logits(params: Tree, x: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = x @ params["weight"] + params["bias"]
            return outputs

        def judge(outputs: torch.Tensor, b: Batch) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(outputs, b.y, reduction="none")

        return _torch_batch(draw, logits, judge)

    def gradient(self, device: str, w: Vector, draw: Draw) -> Vector:  # noqa: ARG002  likewise
        bias, weight = w[:3], w[3:].reshape(4, 3)
        logits = draw.x @ weight + bias
        odds = np.exp(logits - logits.max(1, keepdims=True))
        error = odds / odds.sum(1, keepdims=True) - np.eye(3)[draw.y]
        error *= draw.weight[:, None] / draw.weight.sum()
        return np.concatenate([error.sum(0), (draw.x.T @ error).ravel()])


def _torch_batch(
    draw: Draw,
    forward: Callable[[Tree, torch.Tensor], torch.Tensor],
    judge: Callable[[torch.Tensor, Batch], torch.Tensor],
) -> Batch:
    return Batch((torch.tensor(draw.x),), torch.tensor(draw.y), torch.tensor(draw.weight), forward, judge)


def _padded(x: Vector, y: NDArray[np.int64], padding: int) -> Draw:
    """Padding rows hold garbage, so that a gradient that heeds them shows."""
    return Draw(
        np.concatenate([x, np.full((padding, x.shape[1]), 7.0)]),
        np.concatenate([y, np.full(padding, 2)]),
        np.concatenate([np.ones(len(x)), np.zeros(padding)]),
    )


def _positive(rng: np.random.Generator, spectrum: tuple[float, float]) -> Vector:
    q, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    matrix: Vector = q @ np.diag(rng.uniform(*spectrum, 6)) @ q.T
    return matrix

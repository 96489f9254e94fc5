"""A device whose updates are wrong: what it sends is no number, and it does not look at it before."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

import numpy as np

from device_agent.work import Product

NAN = np.float32("nan").tobytes()
Given = TypeVar("Given")


class Spoiling(Executor):
    """Gives what another executor gives; while ``wrong`` is set, the last number of each upload is NaN.

    Args:
        pool: does the work.
    """

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self.wrong = False

    def submit(self, function: Callable[..., Given], /, *args: Any, **_: Any) -> Future[Given]:  # noqa: ANN401  as Executor has it
        """Do a task."""
        later: Future[Given] = Future()
        later.set_running_or_notify_cancel()
        self._pool.submit(function, *args).add_done_callback(lambda done: self._arrived(done, later))
        return later

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002  as Executor has it
        """Nothing: the pool is somebody else's."""

    def _arrived(self, done: Future[Any], later: Future[Any]) -> None:
        if (error := done.exception()) is not None:
            later.set_exception(error)
            return
        product = done.result()
        if self.wrong and isinstance(product, Product) and product.upload:
            product = dataclasses.replace(product, upload=product.upload[: -len(NAN)] + NAN)
        later.set_result(product)

"""A model gets what an algorithm asks for, and nothing that its user named is changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from _models import fedavg, tiny_cnn

from edgepfl import algorithms
from edgepfl.algorithms.fedper import FedPer
from edgepfl.errors import ConfigError
from edgepfl.plan import Reduce, Shape, Slot, down, keep, up
from exporters.binding import Binding
from exporters.fitting import fitted
from exporters.representation import gaussian, width_of


def test_a_model_that_has_all_that_is_asked_for_stays_as_it_is() -> None:
    shared, split = tiny_cnn(()), tiny_cnn(("head.*",))
    assert fitted(fedavg(), shared) is shared
    assert fitted(fedavg(), split) is split
    assert fitted(algorithms.build("fedper", {}), split) is split
    assert fitted(algorithms.build("fpfc", {}), split) is split  # what the user named, and not the default


def test_without_a_name_the_algorithms_default_is_personal() -> None:
    model = fitted(algorithms.build("fpfc", {}), tiny_cnn(()))
    assert model.personal_names == ("conv.bias", "conv.weight", "head.bias", "head.weight")
    assert set(Binding(algorithms.build("fpfc", {}), model).slots["body"].tensors) == set()
    assert tiny_cnn(()).personal_names == ()


def test_a_part_that_nobody_named_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="none is named") as caught:
        fitted(algorithms.build("fedper", {}), tiny_cnn(()))
    assert caught.value.where == "FedPer"
    assert "conv.bias, conv.weight, head.bias, head.weight" in caught.value.remedy


@dataclass(frozen=True)
class Optional(FedPer):
    """FedPer that splits the model by an option."""

    split: bool = False
    whole: ClassVar[Mapping[str, Slot]] = {"w": down(), "delta": up(Reduce.MEAN)}

    def declared(self) -> Mapping[str, Slot]:
        return {**self.whole, "head": keep(Shape.PERSONAL, first="model")} if self.split else self.whole


def test_what_options_declare_counts() -> None:
    assert fitted(Optional(), tiny_cnn(())).personal_names == ()
    with pytest.raises(ConfigError, match="none is named"):
        fitted(Optional(split=True), tiny_cnn(()))


def test_a_representation_is_made_once_with_a_head_of_its_own() -> None:
    fedcr, plain = algorithms.build("fedcr", {}), tiny_cnn(())
    made = fitted(fedcr, plain, seed=4)
    assert (width_of(made), made.personal_names) == (12, ("head.bias", "head.weight"))
    assert width_of(plain) is None
    same, other = fitted(fedcr, plain, seed=4), fitted(fedcr, plain, seed=5)
    assert torch.equal(same.parameters["head.weight"], made.parameters["head.weight"])
    assert not torch.equal(other.parameters["head.weight"], made.parameters["head.weight"])
    assert fitted(fedcr, made) is made
    narrow = gaussian(plain, 3)
    assert fitted(fedcr, narrow) is narrow


def test_a_representation_of_the_users_own_gets_a_personal_head() -> None:
    fedcr = algorithms.build("fedcr", {})
    own = gaussian(tiny_cnn(()), 3)
    bare = type(own)(**{**vars(own), "personal": ()})
    assert fitted(fedcr, bare).personal == ("head.*",)
    part = type(own)(**{**vars(own), "personal": ("head.bias",)})
    assert fitted(fedcr, part) is part

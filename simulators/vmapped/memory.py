"""The memory of a round for many devices at once: what they have in common, and what each has of its own.

The places are those of :mod:`device_agent.memory`; a tensor of a device's own has the devices on its first axis.
Tensors are replaced and never changed, so two places may share one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor

from device_agent.wiring import Key
from edgepfl.plan import Kind, SlotPlan
from edgepfl.tree import Tree

SlotPlans: TypeAlias = Mapping[str, SlotPlan]


@dataclass
class Memory:
    """What a chunk of devices has in the course of a round.

    Attributes:
        size: how many devices.
        shared: the tensors that all have in common, without an axis of devices.
        own: the tensors that each has one of, devices first; where a place is in both, this one counts.
    """

    size: int
    shared: dict[Key, Tensor] = field(default_factory=dict)
    own: dict[Key, Tensor] = field(default_factory=dict)

    def find(self, place: Key) -> tuple[Tensor | None, bool]:
        """The tensor at a place, and whether it is one for each device; None where nothing was set."""
        if place in self.own:
            return self.own[place], True
        return self.shared.get(place), False

    def stacked(self, place: Key) -> Tensor | None:
        """The tensor at a place with one row a device, be it the same for all."""
        found, own = self.find(place)
        if found is None or own:
            return found
        return found.expand(self.size, *found.shape)

    def share(self, slot: str, tree: Tree) -> None:
        """Set a slot that all devices have in common."""
        self.shared |= {slot_place(slot, name): tensor for name, tensor in tree.items()}

    def give(self, slot: str, tree: Tree) -> None:
        """Set a slot of which each device has its own, devices first."""
        self.own |= {slot_place(slot, name): tensor for name, tensor in tree.items()}


def slot_place(slot: str, tensor: str) -> Key:
    """Where a slot's tensor is."""
    return Kind.SLOT.value, slot, tensor


def hyper_place(name: str) -> Key:
    """Where a hyperparameter is."""
    return Kind.HYPER.value, name, ""


def batch_place(group: str, tensor: str = "") -> Key:
    """Where an input ("x" with its number), the targets ("y") or the weights ("weight") of a minibatch are."""
    return Kind.BATCH.value, group, tensor

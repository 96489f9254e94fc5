"""What codecs may do with an algorithm, for every algorithm: keep the server's knowledge of the devices, or be refused.

That the server's sums, means and copies are those of the devices under codecs that round is in
``test_sums_of_the_fleet.py``.
"""

from __future__ import annotations

import numpy as np
import pytest
from _exported import DEVICES, EVERY, VARIANTS, Options, exported, label
from _federation import COHORTS, Federation, assert_equal, differ

from coordinator import coded, updater
from device_agent.interpreter import RoundResult
from edgepfl.algorithms import Algorithm, load
from edgepfl.coding import codec_of
from edgepfl.errors import ConfigError
from edgepfl.plan import Plan, Reduce, Role
from edgepfl.tree import VALUE, Tree
from simulators.federation import named

BIASED = ("topk:0.2", "threshold:1e-3+int8")
ROUNDING = ("float16", "bfloat16", "int8", "int4+zlib", "sparse+int8")


def opened(name: str, options: Options = ()) -> tuple[Algorithm, Plan]:
    each = exported(name, options=options)
    return updater.algorithm_of(each.bundle.plan, each.settings()), each.bundle.plan


def remembers(algorithm: Algorithm, plan: Plan) -> bool:
    """Whether the server computes more from uploads than the mean that moves a model: it knows of the devices' own.

    It sums or stacks slots of the model's shape, rebuilds others, its state is more than it sends, or its theory needs
    every upload.
    """
    model = {name: slot for name, slot in plan.by_role(Role.UP).items() if VALUE not in slot.tensors}
    more = any(slot.reduce is not Reduce.MEAN for slot in model.values())
    state = updater.first_state(algorithm, plan, exported(plan.algorithm).bundle.model)
    return bool(
        more or algorithm.rebuilt or state.keys() - plan.by_role(Role.DOWN).keys() or algorithm.participation == "all"
    )


@pytest.mark.parametrize("variant", [*((name, ()) for name in EVERY), *VARIANTS], ids=label)
def test_whoever_remembers_says_which_keep_slots_follow_the_upload(variant: tuple[str, Options]) -> None:
    algorithm, plan = opened(*variant)
    keep, up = plan.by_role(Role.KEEP), plan.by_role(Role.UP)
    for amend in algorithm.amended:
        assert keep[amend.keep].tensors == up[amend.up].tensors
        assert np.isfinite(amend.factor)
        assert amend.factor
    assert bool(algorithm.amended) == remembers(algorithm, plan)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("words", [*BIASED, *ROUNDING])
def test_codecs_that_leave_numbers_out_are_refused_where_the_server_remembers(name: str, words: str) -> None:
    algorithm, plan = opened(name)
    if algorithm.amended and codec_of(words).biased:
        with pytest.raises(ConfigError, match=f"{plan.algorithm} would make up for them") as caught:
            coded.check(algorithm, plan, words)
        assert algorithm.amended[0].keep in str(caught.value)
    else:
        assert coded.check(algorithm, plan, words).codec == codec_of(words)


@pytest.mark.parametrize("name", EVERY)
def test_a_codec_without_loss_changes_nothing(name: str) -> None:
    plain, packed = (Federation(exported(name), codec=words).run() for words in ("", "sparse+zlib"))
    assert_equal(packed.trajectory(), plain.trajectory())
    assert packed.kept.keys() == plain.kept.keys()


@pytest.mark.parametrize("name", EVERY)
def test_a_codec_changes_of_a_device_only_what_follows_the_upload(name: str) -> None:
    """In the first round, in which all begin alike."""
    plain = Federation(exported(name)).run(COHORTS[:1])
    amended = {amend.keep for amend in plain.algorithm.amended}
    for words in ("int4", *(() if amended else BIASED)):
        coarse = Federation(exported(name), codec=words).run(COHORTS[:1])
        for device in COHORTS[0]:
            kept, expected = (named("its", each.kept[device]) for each in (coarse, plain))
            changed = {name.split("/")[0].removeprefix("its ") for name in differ(kept, expected)}
            assert changed == amended


@pytest.mark.parametrize("name", [name for name in EVERY if not load(name)().amended])
def test_what_topk_leaves_out_is_owed(name: str) -> None:
    """All that a device's graphs gave for a slot has arrived or is still owed; and rounds do come to something."""
    federation = Federation(exported(name), codec="topk:0.3")
    given: dict[tuple[str, str], Tree] = {}
    arrived: dict[tuple[str, str], Tree] = {}
    trains = federation.train

    def train(device: str, steps: int | None = None) -> RoundResult:
        result = trains(device, steps)
        for slot, tree in result.upload.items():
            given[device, slot] = tree + given[device, slot] if (device, slot) in given else tree
        return result

    federation.train = train  # type: ignore[method-assign]  # what the graphs gave, before it is encoded
    federation.run()
    for moved in federation.history:
        for device, result in moved.results.items():
            for slot, tree in result.upload.items():
                arrived[device, slot] = tree + arrived[device, slot] if (device, slot) in arrived else tree
    owed = 0.0
    for device in DEVICES:
        for slot, left in federation.residual[device].items():
            key = device, slot.removeprefix("residual.")
            for tensor, array in left.items():
                np.testing.assert_allclose(arrived[key][tensor] + array, given[key][tensor], rtol=0, atol=1e-5)
                owed += float(np.abs(array).sum())
    assert owed > 0

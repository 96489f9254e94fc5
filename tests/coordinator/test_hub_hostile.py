"""What a hub, or whoever says that it is one, may not say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest
import safetensors.numpy
from _plans import bundle_of
from _scripted import Hand, config, coordinating, drained, hands, play, ref_of, told, upload_of

from coordinator import updater
from coordinator.exact import Grid
from coordinator.reduction import Upload
from coordinator.rounds import State
from coordinator.service import Coordinator
from coordinator.sums import Exactly, Form
from edgepfl import codec
from edgepfl.bundle import Bundle, pack
from edgepfl.bus.loopback import LoopbackBroker
from edgepfl.errors import ConfigError
from edgepfl.plan import Role
from edgepfl.wire import Hello, Part, Report, Task

pytestmark = pytest.mark.usefixtures("impatient")

EXAMPLES = {"ant": 4, "bee": 6}
SETTINGS = config(goal=2, minimum=1, max_examples=100, max_norm=1e3)
GRID = Grid.of(1e3, 100)
Bins = dict[str, np.ndarray]


def form_of(bundle: Bundle) -> Form:
    return Form(bundle.plan, updater.algorithm_of(bundle.plan, {}), GRID)


def sums(bundle: Bundle, task: Task, scale: float = 1.0) -> bytes:
    """Honest sums of two devices."""
    exactly = Exactly(form_of(bundle), bundle.plan.by_role(Role.UP), EXAMPLES)
    declared = {name: slot.tensors for name, slot in bundle.plan.by_role(Role.UP).items()}
    for device, examples in EXAMPLES.items():
        trees = codec.decode(bytearray(upload_of(bundle.plan, task, device)), declared)
        scaled = {name: tree.map(lambda array: array * np.float32(scale)) for name, tree in trees.items()}
        exactly.offer(device, Upload(examples, task.steps, lambda trees=scaled: trees))  # type: ignore[misc]  # bound now
    return exactly.encoded(tuple(EXAMPLES))


def honest(hand: Hand, bundle: Bundle, task: Task) -> Report:
    parts = tuple(Part(device, examples, task.steps) for device, examples in EXAMPLES.items())
    report = hand.report(task, ref_of(sums(bundle, task)), examples=10)
    return msgspec.structs.replace(report, members=parts)


def with_members(*parts: tuple[str, int, int]) -> Callable[[Report], Report]:
    members = tuple(Part(*part) for part in parts)
    examples, steps = sum(part.examples for part in members), max(part.steps for part in members)
    return lambda report: msgspec.structs.replace(report, members=members, examples=examples, steps=steps)


def with_bins(change: Callable[[np.ndarray], np.ndarray], dtype: str = "int64") -> Callable[[Report], Report]:
    def changed(report: Report) -> Report:
        assert report.upload is not None
        flat = safetensors.numpy.load(report.upload.inline)
        data = safetensors.numpy.save({name: change(array).astype(dtype) for name, array in flat.items()})
        return msgspec.structs.replace(report, upload=ref_of(data))

    return changed


LIES: Mapping[str, tuple[Callable[[Report], Report], str]] = {
    "nobody": (lambda r: msgspec.structs.replace(r, members=()), "speaks for 0 devices"),
    "too many": (with_members(("ant", 4, 10), ("bee", 4, 10), ("cat", 2, 10)), "speaks for 3 devices"),
    "one twice": (with_members(("ant", 4, 10), ("ant", 6, 10)), "each named once"),
    "not in order": (with_members(("bee", 6, 10), ("ant", 4, 10)), "each named once"),
    "more weight": (with_members(("ant", 4, 10), ("bee", 101, 10)), "of which 100 are allowed"),
    "no weight": (with_members(("ant", 10, 10), ("bee", 0, 10)), "on 0 examples"),
    "more steps": (with_members(("ant", 4, 10), ("bee", 6, 11)), "11 of 10 steps"),
    "no step": (with_members(("ant", 4, 0), ("bee", 6, 10)), "0 of 10 steps"),
    "another sum": (lambda r: msgspec.structs.replace(r, examples=11), "are not those of its devices"),
    "no upload": (lambda r: msgspec.structs.replace(r, upload=None), "no upload in a round of 10 steps"),
    "a device's upload": (lambda r: msgspec.structs.replace(r, upload=ref_of(b"x" * 90)), "not safetensors"),
    "too long": (lambda r: msgspec.structs.replace(r, upload=ref_of(b"x" * (2 << 20), inline=False)), "are possible"),
    "no whole numbers": (with_bins(lambda a: a, "float64"), "declared int64"),
    "off its bins": (with_bins(lambda a: a * 0 + (1 << 60)), "no sum of 2 uploads"),
    "too great": (with_bins(lambda a: a * 0 + (1 << 34)), "has norm"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_costs_the_hub_its_seat(lie: str, tmp_path: Path) -> None:
    bundle = bundle_of("fedavg")
    tell, why = LIES[lie]

    async def scenario() -> None:
        broker = LoopbackBroker()
        async with (
            coordinating(broker, tmp_path, hubs={"north": 2}) as service,
            hands(broker, "fly") as [fly],
            Hand(broker, "north") as north,
        ):
            north.say(Hello("north", 1, ("onnx",), 10, 512, "test", members=("ant", "bee")))
            await drained(service, broker)
            service.start_run(SETTINGS, pack(bundle))
            task = await told([north, fly])
            assert task.grid == GRID.top
            north.say(tell(honest(north, bundle, task)))
            await drained(service, broker)
            await failed(service, "north")
            seat = service._active.round.seats["north"]
            assert seat.state is State.FAILED
            assert why in seat.why
            assert service._active.round.seats["fly"].state is State.WORKING

    play(scenario())


async def failed(service: Coordinator, device: str) -> None:
    while service._active.round.seats[device].state is State.WORKING:
        await service._changed.wait()


def test_the_truth_is_taken(tmp_path: Path) -> None:
    bundle = bundle_of("fedavg")

    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path, hubs={"north": 2}) as service, Hand(broker, "north") as north:
            north.say(Hello("north", 1, ("onnx",), 10, 512, "test", members=("ant", "bee")))
            await drained(service, broker)
            run = service.start_run(msgspec.structs.replace(SETTINGS, goal=1), pack(bundle))
            task = await told([north])
            north.say(honest(north, bundle, task))
            assert (await told([north])).round == 2
            results = service.journal.results(run)
            assert [(r.device, r.examples) for r in results] == [("north", 10), ("north/ant", 4), ("north/bee", 6)]
            assert service.journal.accepted(run) == {"north": 1, "north/ant": 1, "north/bee": 1}

    play(scenario())


@pytest.mark.parametrize(
    ("hubs", "members"),
    [
        pytest.param({}, ("ant", "bee"), id="nobody named it"),
        pytest.param({"north": 1}, ("ant", "bee"), id="more than it may speak for"),
        pytest.param({"north": 2}, (), id="a hub without devices"),
    ],
)
def test_who_may_not_speak_for_others_is_not_chosen(
    hubs: dict[str, int], members: tuple[str, ...], tmp_path: Path
) -> None:
    async def scenario() -> None:
        broker = LoopbackBroker()
        async with (
            coordinating(broker, tmp_path, hubs=hubs) as service,
            hands(broker, "fly") as [fly],
            Hand(broker, "north") as north,
        ):
            north.say(Hello("north", 1, ("onnx",), 10, 512, "test", members=members))
            await drained(service, broker)
            service.start_run(config(goal=2, minimum=1, gather=1e-9), pack(bundle_of("fedavg")))
            service._clock.now += 1  # type: ignore[attr-defined]  # the test's clock
            task = await told([fly])
            assert [member.device for member in task.cohort] == ["fly"]

    play(scenario())


def test_a_device_does_not_become_a_hub(tmp_path: Path) -> None:
    bundle = bundle_of("fedavg")

    async def scenario() -> None:
        broker = LoopbackBroker()
        async with coordinating(broker, tmp_path, hubs={"north": 2}) as service, hands(broker, "fly") as [fly]:
            service.start_run(config(goal=1, minimum=1), pack(bundle))
            fly.say(honest(fly, bundle, await told([fly])))
            assert (await told([fly])).attempt == 1

    play(scenario())


@pytest.mark.parametrize(
    ("name", "fields", "why"),
    [("fpfc", {}, "needs each device's own"), ("fedavg", {"robust": "median"}, "median looks at each")],
)
def test_what_needs_single_models_does_not_start(name: str, fields: dict[str, str], why: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with coordinating(LoopbackBroker(), tmp_path, hubs={"north": 2}) as service:
            with pytest.raises(ConfigError, match=why):
                service.start_run(config(**fields), pack(bundle_of(name)))

    play(scenario())

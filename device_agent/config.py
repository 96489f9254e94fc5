"""``agent.toml``: what an agent is told by its owner.

::

    device = "pi-07"
    fleet = "watches"
    state = "state"                         # directory of the store; paths are relative to this file

    [broker]
    url = "mqtts://broker.example:8883"     # or mqtt://
    username = "pi-07"
    password_file = "broker.password"
    ca = "ca.pem"
    cert = "pi-07.pem"
    key = "pi-07.key"

    [data]
    source = "watch:load"                   # MODULE:FUNCTION, or FILE.npz, or FILE.csv
    options = {wearer = 3}

    [runtime]
    kind = "onnx"                           # or "executorch", see edgepfl build-runner
    threads = 1
    spin = false                            # of onnx
    library = "runner"                      # of executorch: the folder that build-runner made

    [transfer]                              # see edgepfl.bus.transfer
    chunk_kib = 0
    quota_mib = 0
    reserve_mib = 64

    [work]
    checkpoint_seconds = 60                 # a power cut costs no more training than this; 0: all of the round

    [conditions]                            # what the device cannot measure itself, for a run that asks
    metered = true
    every = 5
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from edgepfl.bus.settings import Broker, anchored, broker_in, read
from edgepfl.bus.transfer import Transfer
from edgepfl.errors import ConfigError
from edgepfl.topics import check_name

FILES = (".npz", ".csv")
"""The endings of data sources that are files."""

Text: TypeAlias = Annotated[str, Meta(min_length=1)]


class DataSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[data]``.

    Attributes:
        source: ``MODULE:FUNCTION``, or a file that ends in one of :data:`FILES`.
        options: the source's keyword arguments.
        folder: where a plug-in's module is also looked for; by default beside the file of settings.
    """

    source: Text
    options: dict[str, Any] = {}
    folder: str = "."


class RuntimeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[runtime]``.

    Attributes:
        kind: what runs the graphs; a bundle must have graphs for it.
        threads: threads inside one operator.
        spin: let idle threads burn the processor for a little less latency; ONNX Runtime's alone.
        library: folder of the ExecuTorch library; empty: where ``edgepfl build-runner`` puts it.
    """

    kind: Literal["onnx", "executorch"] = "onnx"
    threads: Annotated[int, Meta(ge=1, le=256)] = 1
    spin: bool = False
    library: str = ""


class ConditionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[conditions]``: what the owner knows better than the sensors; None: they are asked.

    Attributes:
        metered: whether its traffic is paid for by the byte.
        wifi: whether it is connected by Wi-Fi or cable.
        powered: whether it is on external power; for a board on a battery that the system does not know.
        every: seconds between two looks at the sensors, while a run has conditions.
    """

    metered: bool | None = None
    wifi: bool | None = None
    powered: bool | None = None
    every: Annotated[float, Meta(ge=0.1, le=3600)] = 5.0


class WorkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[work]``: how tasks are done.

    Attributes:
        checkpoint_seconds: of training between two checkpoints, from which a round goes on after a power cut; 0 for
            none.  Each writes what the run's model and personal state take, some MB, and wears the card so much.
    """

    checkpoint_seconds: Annotated[float, Meta(ge=0, le=86400)] = 60.0


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file; after :func:`load` its paths are absolute.

    Attributes:
        device: the device's name, unique in its fleet.
        fleet: the fleet's name.
        broker: how to reach the broker.
        data: where the examples come from.
        state: directory of the store.
        runtime: how the machine is used.
        work: how tasks are done.
        conditions: what is known of the device without measuring it.
        transfer: how blobs are transferred, and how much of the disk they may use.
    """

    device: str
    fleet: str
    broker: Broker
    data: DataSettings
    state: Text = "state"
    runtime: RuntimeSettings = RuntimeSettings()
    work: WorkSettings = WorkSettings()
    conditions: ConditionSettings = ConditionSettings()
    transfer: Transfer = Transfer()


def load(path: Path) -> AgentConfig:
    """The settings in a file.

    Raises:
        ConfigError: it cannot be read, or a setting is unknown, missing, of the wrong type or impossible.
    """
    config, folder = read(path, AgentConfig), path.absolute().parent
    check_name(config.device, f"{path}, device")
    check_name(config.fleet, f"{path}, fleet")
    replace = msgspec.structs.replace
    return replace(
        config,
        broker=broker_in(config.broker, folder, f"{path}, broker"),
        data=_data_in(config.data, folder, f"{path}, data"),
        state=anchored(config.state, folder),
        runtime=replace(config.runtime, library=anchored(config.runtime.library, folder)),
    )


def _data_in(data: DataSettings, folder: Path, where: str) -> DataSettings:
    module, colon, function = data.source.partition(":")
    is_file = data.source.endswith(FILES)
    if not is_file and not (module and colon and function.isidentifier()):
        raise ConfigError(
            f"{data.source!r} is no data source",
            where=f"{where}.source",
            remedy=f"Give MODULE:FUNCTION, or a file that ends in {' or '.join(FILES)}",
        )
    source = anchored(data.source, folder) if is_file else data.source
    return msgspec.structs.replace(data, source=source, folder=anchored(data.folder, folder))

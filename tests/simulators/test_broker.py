from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from urllib.parse import urlsplit

import psutil
import pytest

from edgepfl.errors import BusError
from simulators import broker as module
from simulators.broker import BrokerHandle, PrivateBroker, open_broker

pytestmark = pytest.mark.broker
_PARENT = """
import sys
from simulators.broker import open_broker
broker = open_broker(kind=sys.argv[1])
print(broker.url, broker._broker, flush=True)
sys.stdin.read()
"""


def answers(url: str, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, urlsplit(url).port or 0), timeout=5).close()
    except OSError:
        return False
    return True


def until(condition: object) -> bool:
    assert callable(condition)
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())


def test_it_starts_stops_and_comes_back_on_its_port(broker: BrokerHandle) -> None:
    url = broker.url
    assert answers(url)
    broker.start()  # harmless
    for end in (broker.stop, broker.kill):
        end()
        assert not answers(url)
        end()  # harmless
        broker.start()
        assert answers(url)
    assert broker.url == url


def test_it_listens_on_the_loopback_device_only(broker: BrokerHandle) -> None:
    assert isinstance(broker, PrivateBroker)
    listening = [each for each in psutil.Process(broker._broker).net_connections() if each.status == psutil.CONN_LISTEN]
    assert {each.laddr[0] for each in listening} == {"127.0.0.1"}
    assert broker.url == f"mqtt://127.0.0.1:{listening[0].laddr[1]}"


def test_leaving_the_context_ends_it(broker: BrokerHandle) -> None:
    with open_broker(kind="mosquitto" if broker.name == "mosquitto" else "iotcore") as other:
        assert other.url != broker.url
        assert answers(other.url)
    assert not answers(other.url)
    assert answers(broker.url)


def test_it_dies_with_its_parent(broker: BrokerHandle) -> None:
    command = [sys.executable, "-c", _PARENT, broker.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        url, process = parent.stdout.readline().split()
        assert answers(url)
        os.kill(parent.pid, signal.SIGKILL)
    assert until(lambda: not psutil.pid_exists(int(process)))
    assert not answers(url)


def test_a_broker_that_does_not_start_says_why() -> None:
    with socket.socket() as taken, PrivateBroker("mosquitto") as broker:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        broker._port = taken.getsockname()[1]
        with pytest.raises(BusError, match="Address already in use") as caught:
            broker.start()
        assert caught.value.where == "mosquitto"
        broker._port = 0
        broker.start()
        assert answers(broker.url)


def test_a_given_broker_is_left_alone(broker: BrokerHandle) -> None:
    with open_broker(broker.url) as given:
        assert (given.url, given.name) == (broker.url, "given")
        given.kill()
        given.start()
        given.stop()
    assert answers(broker.url)


def test_without_any_broker_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "installed", lambda _kind: False)
    with pytest.raises(BusError) as caught:
        open_broker()
    assert "pip install" in caught.value.remedy
    assert "--broker" in caught.value.remedy
    with pytest.raises(BusError, match="iotcore"):
        open_broker(kind="iotcore")

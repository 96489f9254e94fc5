"""A soak's arithmetic against plain formulas, and that a leak and a loss fail it."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from simulators.soak import _parser, as_json, main, told
from simulators.soak_measures import Growth, Latency, Sample, SoakResult, growth, latency, slope
from simulators.soak_page import picture
from simulators.soak_trouble import Rates, mishaps


def samples(rate: float, *, minutes: int = 10, process: int = 1, level: float = 100.0, at: float = 0.0) -> list[Sample]:
    """One each ten seconds, growing by ``rate`` a minute."""
    times = [10.0 * number for number in range(6 * minutes)]
    return [Sample(at + each, process, level + rate * each / 60, level / 2) for each in times]


def rss(sample: Sample) -> float:
    return sample.rss


@pytest.mark.parametrize("rate", [0.0, 0.4, 5.0, -2.0])
def test_a_slope_is_that_of_the_samples(rate: float) -> None:
    assert slope(samples(rate), 60.0, rss) == pytest.approx(rate, abs=1e-9)


def test_a_slope_is_numpys_where_there_is_noise() -> None:
    source = np.random.default_rng(0)
    noisy = [Sample(each.at, 1, each.rss + source.normal(), 0.0) for each in samples(0.5)]
    kept = noisy[6:]
    expected = np.polyfit([each.at / 60 for each in kept], [each.rss for each in kept], 1)[0]
    assert slope(noisy, 60.0, rss) == pytest.approx(expected)


def test_a_process_that_begins_anew_does_not_hide_its_leak() -> None:
    lives = [*samples(2.0), *samples(2.0, process=2, level=20.0, at=700.0)]
    assert slope(lives, 60.0, rss) == pytest.approx(2.0)
    steady = [*samples(0.0), *samples(0.0, process=2, level=500.0, at=700.0)]
    assert slope(steady, 60.0, rss) == pytest.approx(0.0)


def test_warming_up_is_no_leak() -> None:
    warm = [Sample(each.at, 1, 100.0 if each.at >= 120 else each.at, 0.0) for each in samples(0.0)]
    assert growth(warm).rss_slope == pytest.approx(0.0)


def test_percentiles_are_milliseconds() -> None:
    assert latency([0.001] * 99 + [1.0]).p50_ms == 1.0
    assert latency([]) == Latency()


def result(**changed: object) -> SoakResult:
    fields: dict[str, object] = {
        "seed": 1, "broker": "mosquitto", "devices": 10, "minutes": 1.0, "rounds": 3, "reports": 30, "expected": 30,
        "abandoned": 0, "behind": 0, "cuts": 1, "coordinator_cuts": 0, "kills": 0, "unanswered": 0, "echo": Latency(),
        "control": Latency(), "memory": {"coordinator": Growth(0.9, 0.0, 100.0)},
    }  # fmt: skip
    return SoakResult(**{**fields, **changed})  # type: ignore[arg-type]  # each is a field's


def test_what_passes_and_what_fails() -> None:
    assert result().failures == ()
    assert told(result()).endswith("passed")
    for changed in (
        {"reports": 29},
        {"behind": 1},
        {"rounds": 0, "reports": 0, "expected": 0},
        {"memory": {"fleet": Growth(1.0, 0.0, 100.0)}},
    ):
        assert len(result(**changed).failures) == 1
        assert "FAILED" in told(result(**changed))
        assert '"failures":["' in as_json(result(**changed))


def test_mishaps_follow_from_the_seed_and_come_as_often_as_asked() -> None:
    def first(seed: int, count: int = 600) -> list[object]:
        return list(itertools.islice(mishaps(Rates(cuts=30.0, coordinator=1.0, kills=2.0), ("a", "b"), seed), count))

    assert first(1) == first(1) != first(2)
    found = list(itertools.takewhile(lambda each: each.at < 6000, mishaps(Rates(30.0, 1.0, 0.0), ("a", "b"), 1)))
    assert [each.at for each in found] == sorted(each.at for each in found)
    kinds = [each.what for each in found]
    assert 2800 < kinds.count("device") < 3200
    assert 70 < kinds.count("coordinator") < 130
    assert "broker" not in kinds


def test_the_picture_is_svg() -> None:
    root = ET.fromstring(picture({"coordinator": samples(1.0), "broker": []}, "a <soak>"))  # noqa: S314  our own
    assert root.tag.endswith("svg")
    assert len(root.findall(".//{*}polyline")) == 4


@pytest.mark.parametrize("words", [["--devices", "0"], ["--devices", "2001"], ["--minutes", "0"], ["--kills", "-1"]])
def test_numbers_that_mean_nothing_are_refused(words: list[str]) -> None:
    with pytest.raises(Exception, match="--"):
        main(words)


def test_the_usual_soak_is_the_promises() -> None:
    words = _parser().parse_args([])
    assert (words.devices, words.minutes) == (1000, 30.0)

"""What the demo shows: honest arithmetic, every device, nothing fetched and nothing unescaped."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepfl.errors import DataError
from simulators.report import (
    DemoResult,
    Point,
    Summary,
    Traffic,
    as_json,
    comparison_markdown,
    comparison_text,
    summary,
    table,
    write_html,
)
from simulators.report.svg import Scale

DEVICES = tuple(f"pi-{number:02}" for number in range(20))
WICKED = '<script>alert("x")</script>&'


def result_of(devices: tuple[str, ...] = DEVICES) -> DemoResult:
    accuracy = {
        model: {device: base + 0.01 * number for number, device in enumerate(devices)}
        for model, base in (("personal", 0.8), ("local", 0.7), ("global", 0.6))
    }
    return DemoResult(
        seed=7,
        algorithm="ditto",
        data="watch",
        rounds=2,
        accuracy=accuracy,
        curve=(Point(0, 0.1, 0.1), Point(1, train_loss=1.5), Point(2, 0.6, 0.8, 0.5)),
        traffic=(Traffic(900, 100, 1000, 2000), Traffic(300, 100, 400, 2000)),
        seconds={"export": 1.5, "rounds": 4.0},
        seconds_per_round=2.0,
        model_sha256="ab" * 32,
        pss_mib={"coordinator": 300.0, "agent": 60.5},
        versions={"torch": "2.13.0"},
    )


class Reader(HTMLParser):
    """Every element and attribute of a page, and whether its tags close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def written(result: DemoResult, folder: Path) -> str:
    write_html(result, folder / "report.html")
    assert [path.name for path in folder.iterdir()] == ["report.html"]
    return (folder / "report.html").read_text(encoding="utf-8")


def test_the_worst_decile_is_the_worst_two_of_twenty() -> None:
    found = summary([1.0] * 17 + [0.5, 0.1, 0.3])
    assert found.worst_decile == pytest.approx(0.2)
    assert found.mean == pytest.approx(0.895)
    assert found.best == 1.0
    assert summary([0.4] + [0.9] * 9).worst_decile == 0.4  # one of ten
    assert summary([0.4, 0.6] + [0.9] * 9).worst_decile == pytest.approx(0.5)  # two of eleven: rounded up


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_a_summary_is_in_order(accuracies: list[float]) -> None:
    found = summary(accuracies)
    assert min(accuracies) - 1e-12 <= found.worst_decile <= found.mean + 1e-12
    assert found.mean <= found.best + 1e-12
    assert found == summary(reversed(accuracies))


@pytest.mark.parametrize("accuracies", [[], [0.5, float("nan")]])
def test_nothing_is_no_summary(accuracies: list[float]) -> None:
    with pytest.raises(DataError) as caught:
        summary(accuracies)
    assert caught.value.where == "summary"


def test_the_page_names_every_device_and_every_number(tmp_path: Path) -> None:
    page = written(result_of(), tmp_path)
    reader = Reader(page)
    assert not reader.open
    assert reader.elements.count("svg") == 5
    assert reader.elements.count("circle") == 3 * len(DEVICES)
    for device in DEVICES:
        assert page.count(f">{device}<") == 2  # in the picture and in the table
    for fact in ("ab" * 32, "60.5 MiB", "89.5 %", "80.5 %", "seed 7", "local only"):
        assert fact in page


def test_the_page_fetches_nothing(tmp_path: Path) -> None:
    page = written(result_of(), tmp_path)
    reader = Reader(page)
    assert not {"script", "link", "img", "iframe"} & set(reader.elements)
    assert not {"src", "href", "srcset"} & {name for name, _ in reader.attributes}
    assert "url(" not in page
    assert "http" not in page


def test_names_are_escaped_everywhere(tmp_path: Path) -> None:
    wicked = replace(
        result_of((WICKED, "pi-01")),
        algorithm=WICKED,
        data=WICKED,
        versions={WICKED: WICKED},
        seconds={WICKED: 1.0},
        model_sha256=WICKED,
    )
    page = written(wicked, tmp_path)
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&amp;") >= 9
    assert not Reader(page).open


def test_the_pictures_are_well_formed_and_inside_their_frames(tmp_path: Path) -> None:
    pictures = re.findall(r"<svg.*?</svg>", written(result_of(), tmp_path), flags=re.DOTALL)
    assert len(pictures) == 5
    for picture in pictures:
        root = ET.fromstring(picture)  # noqa: S314 - our own picture
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for element in root.iter():
            for name, limit in (("x", width), ("cx", width), ("y", height), ("cy", height), ("y2", height)):
                assert 0 <= float(element.attrib.get(name, 0)) <= limit


def test_a_page_without_curves_traffic_or_seconds_still_shows_the_devices(tmp_path: Path) -> None:
    bare = replace(result_of(("only",)), curve=(), traffic=(), seconds={}, pss_mib={}, versions={})
    page = written(bare, tmp_path)
    assert Reader(page).elements.count("svg") == 1
    assert ">only<" in page
    assert as_json(bare)["bytes"] == {}


def test_a_single_evaluation_is_a_dot(tmp_path: Path) -> None:
    page = written(replace(result_of(), curve=(Point(0, 1.0, 0.0, 0.0),), traffic=(Traffic(1, 1, 1, 0),)), tmp_path)
    assert Reader(page).elements.count("polyline") == 0
    assert Reader(page).elements.count("circle") == 3 * len(DEVICES) + 2 + 1 + 3


def test_the_terminal_table_has_one_line_for_each_model() -> None:
    lines = table(result_of()).splitlines()
    assert lines[0].split() == ["accuracy", "over", "20", "devices", "mean", "worst", "decile", "best"]
    assert [line.split()[-3:] for line in lines[2:]] == [
        ["0.795", "0.705", "0.890"],
        ["0.695", "0.605", "0.790"],
        ["0.895", "0.805", "0.990"],
    ]
    assert {len(line) for line in lines} == {len(lines[0])}


def test_the_comparison_gives_the_spread_over_seeds() -> None:
    methods = {"FedAvg": [Summary(0.8, 0.6, 1.0), Summary(0.9, 0.6, 1.0)], "a|b": [Summary(0.7, 0.5, 0.9)]}
    text, markdown = comparison_text(methods), comparison_markdown(methods)
    assert "0.850 \u00b1 0.071" in text
    assert "0.600 \u00b1 0.000" in text
    assert markdown.splitlines()[1] == "| :-- | --: | --: | --: |"
    assert markdown.splitlines()[3] == "| a/b | 0.700 | 0.500 | 0.900 |"


def test_the_json_keeps_its_names() -> None:
    found = as_json(result_of())
    assert {"seed", "algorithm", "rounds", "accuracy", "seconds_per_round", "bytes", "pss_mib", "versions"} < set(found)
    accuracy, traffic = found["accuracy"], found["bytes"]
    assert isinstance(accuracy, dict)
    assert set(accuracy) == {"local", "global", "personal"}
    assert set(accuracy["local"]) == {"mean", "worst_decile", "best", "devices"}
    assert traffic == {"device_down": 600, "device_up": 100, "coordinator_out": 700, "coordinator_in": 2000}


@given(low=st.floats(-1e6, 1e6), span=st.floats(1e-3, 1e6))
def test_ticks_are_few_and_inside(low: float, span: float) -> None:
    scale = Scale(low, low + span, 0, 100)
    ticks = scale.ticks()
    assert 1 <= len(ticks) <= 7
    assert all(-0.1 <= scale(tick) <= 100.1 for tick in ticks)


def test_a_logarithmic_scale_ticks_at_powers_of_ten() -> None:
    scale = Scale(10, 1000, 0, 100, log=True)
    assert scale.ticks() == [10, 100, 1000]
    assert [scale(value) for value in (10, 100, 1000)] == pytest.approx([0, 50, 100])

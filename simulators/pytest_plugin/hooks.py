"""What pytest calls around each test: markers are checked before, and who was there tells of a failure."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping

import pytest
from _pytest._code.code import ExceptionRepr  # what longrepr mostly is; pytest exports no name for it

from simulators.pytest_plugin.witness import Witness

FIXTURES = {
    "fleet": ("fleet", "make_fleet"),
    "faults": ("fleet", "make_fleet"),
    "scenario": ("fleet", "make_fleet"),
    "board": ("board",),
}
"""Marker to the fixtures that it configures."""
TITLE = "edgepfl"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a marker that would do nothing."""
    names = getattr(item, "fixturenames", ())
    for marker, fixtures in FIXTURES.items():
        if item.get_closest_marker(marker) is not None and not set(fixtures) & set(names):
            pytest.fail(
                f"@pytest.mark.{marker} does nothing here: the test does not ask for the fixture {fixtures[0]!r}. "
                f"Add it to the test's arguments, or take the marker away",
                pytrace=False,
            )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add each fleet's figures to the properties of the test, and its story to a failure."""
    there = list(_witnesses(item)) if call.when == "call" else []
    figures = {name: str(value) for witness in there for name, value in _figures(witness).items()}
    item.user_properties += [(f"{TITLE}.{name}", value) for name, value in figures.items()]
    report = yield
    if report.failed:
        # A fleet and what made it tell the same.
        for told in dict.fromkeys(filter(None, (_account(witness, item.nodeid) for witness in there))):
            _append(report, told)
    return report


def _figures(witness: Witness) -> Mapping[str, str | int | float]:
    try:
        return witness.figures()
    except Exception as error:  # noqa: BLE001  likewise
        return {"trouble": str(error)}


def _account(witness: Witness, test: str) -> str:
    try:
        return witness.account(test)
    except Exception as error:  # noqa: BLE001  what broke the test may break this too, and must not hide it
        return f"{witness!r} cannot be told of: {error}"


def _witnesses(item: pytest.Item) -> Iterator[Witness]:
    for value in getattr(item, "funcargs", {}).values():
        if isinstance(value, Witness):
            yield value


def _append(report: pytest.TestReport, text: str) -> None:
    """Into the failure itself: JUnit XML has room for that, and for no section of ours."""
    longrepr = report.longrepr
    if isinstance(longrepr, ExceptionRepr):
        longrepr.addsection(TITLE, text)
    elif isinstance(longrepr, str):
        report.longrepr = f"{longrepr}\n\n{text}"
    else:
        report.sections.append((TITLE, text))

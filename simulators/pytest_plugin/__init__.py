"""The pytest plugin: an emulated fleet, a broker, a coordinator or one board as a fixture of any project's tests.

::

    @pytest.mark.fleet(agents=20, algorithm="ditto", data="digits", rounds=5)
    def test_personal_models_are_good(fleet):
        assert fleet.report.worst_decile > 0.8
        assert fleet.lost == 0

It comes with edgepfl's distribution and costs a project that does not use it nothing but its own few modules: whatever
is heavy is imported by the first test that asks for a fixture.  See ``docs/testing.md``.
"""

from simulators.pytest_plugin.fixtures import board, broker, coordinator, fleet, make_fleet
from simulators.pytest_plugin.hooks import pytest_runtest_makereport, pytest_runtest_setup
from simulators.pytest_plugin.options import (
    pytest_addoption,
    pytest_configure,
    pytest_configure_node,
    pytest_report_header,
)

__all__ = [
    "board",
    "broker",
    "coordinator",
    "fleet",
    "make_fleet",
    "pytest_addoption",
    "pytest_configure",
    "pytest_configure_node",
    "pytest_report_header",
    "pytest_runtest_makereport",
    "pytest_runtest_setup",
]

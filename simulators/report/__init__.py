"""The demo's report: a table for the terminal, one HTML page with pictures, and JSON."""

from simulators.report.page import write_html
from simulators.report.result import DemoResult, Point, Traffic, as_json
from simulators.report.summary import Summary, summary
from simulators.report.table import comparison_markdown, comparison_text, table

__all__ = [
    "DemoResult",
    "Point",
    "Summary",
    "Traffic",
    "as_json",
    "comparison_markdown",
    "comparison_text",
    "summary",
    "table",
    "write_html",
]

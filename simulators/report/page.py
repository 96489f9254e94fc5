"""The report: one HTML file with its pictures inside and nothing fetched from anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from simulators.report import charts
from simulators.report.markup import Markup, join, tag
from simulators.report.result import MODELS, DemoResult, mean_traffic
from simulators.report.style import STYLE
from simulators.report.summary import summary
from simulators.report.table import COLUMNS


def write_html(result: DemoResult, path: Path) -> None:
    """Write the report; an old one is replaced as a whole.

    Args:
        result: must hold accuracies of at least one model.
        path: its folder must exist.
    """
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(page(result), encoding="utf-8")
    fresh.replace(path)


def page(result: DemoResult) -> str:
    """The whole document."""
    title = f"edgepfl: {result.algorithm} on {len(result.devices)} devices"
    head = tag(
        "head",
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        tag("title", title),
        tag("style", Markup(STYLE)),
    )
    sections = [_accuracy(result), _devices(result), _curves(result), _cost(result), _facts(result)]
    body = tag("body", tag("h1", title), _subtitle(result), *sections)
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _subtitle(result: DemoResult) -> Markup:
    words = (
        f"Data set {result.data}, {result.rounds} rounds of {result.seconds_per_round:.2f} s, seed {result.seed}. "
        "Every device was tested on examples of its own that nobody trained on."
    )
    return tag("p", words, class_="note")


def _accuracy(result: DemoResult) -> Markup:
    rows: list[Markup] = []
    for model in result.models:
        figures = summary(result.accuracy[model].values()).figures
        cells = [tag("td", f"{100 * figure:.1f} %") for figure in figures]
        rows.append(tag("tr", tag("td", MODELS[model]), *cells, class_="chosen" if model == "personal" else ""))
    explained = "Over the devices; the worst decile is the mean of the worst tenth of them."
    return tag(
        "section",
        tag("h2", "Test accuracy"),
        tag("p", explained, class_="note"),
        _table(("trained as", *COLUMNS), rows),
    )


def _devices(result: DemoResult) -> Markup:
    exact = [
        tag("tr", tag("td", device), *(_cell(result.accuracy[model].get(device)) for model in result.models))
        for device in result.devices
    ]
    head = ("device", *(MODELS[model] for model in result.models))
    return tag(
        "section",
        tag("h2", "Device by device"),
        _legend((model, MODELS[model]) for model in result.models),
        tag("div", charts.accuracy_by_device(result), class_="wide"),
        tag("details", tag("summary", "The same as numbers"), _table(head, exact)),
    )


def _curves(result: DemoResult) -> Markup:
    shown = [("global", MODELS["global"]), ("personal", MODELS["personal"])]
    accuracy = _figure("Mean test accuracy by round", shown, charts.learning_curves(result.curve))
    loss = _figure("Mean training loss by round", [], charts.loss_curve(result.curve))
    return tag("div", accuracy, loss, class_="pair")


def _cost(result: DemoResult) -> Markup:
    mean = mean_traffic(result.traffic)
    shown = [
        (name.replace("_", "-"), f"{words}: {charts.bytes_in_words(mean[name])}")
        for name, words in charts.TRAFFIC_NAMES.items()
        if name in mean
    ]
    traffic = _figure("Bytes by round, and their mean", shown, charts.bytes_by_round(result.traffic))
    time = _figure("Time by phase", [], charts.seconds_by_phase(result.seconds))
    return tag("div", traffic, time, class_="pair")


def _figure(title: str, shown: Sequence[tuple[str, str]], picture: Markup | None) -> Markup:
    if picture is None:
        return Markup("")
    return tag("section", tag("h2", title), _legend(shown), picture)


def _facts(result: DemoResult) -> Markup:
    facts = {
        "final global model, SHA-256": result.model_sha256,
        **{f"{process}, memory (PSS)": f"{size:.1f} MiB" for process, size in result.pss_mib.items()},
        **result.versions,
    }
    rows = [tag("tr", tag("td", name), tag("td", value)) for name, value in facts.items()]
    return tag("section", tag("h2", "What ran"), tag("table", *rows, class_="facts"))


def _legend(shown: Iterable[tuple[str, str]]) -> Markup:
    entries = [tag("li", tag("i", class_=name), words) for name, words in shown]
    return tag("ul", *entries, class_="legend") if entries else Markup("")


def _table(head: Sequence[str], rows: Sequence[Markup]) -> Markup:
    return tag("table", tag("tr", *(tag("th", name) for name in head)), join(*rows))


def _cell(accuracy: float | None) -> Markup:
    return tag("td", "" if accuracy is None else f"{100 * accuracy:.1f} %")

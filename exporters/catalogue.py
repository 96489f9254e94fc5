"""What the algorithms are, as data: sizes from their slots, hyperparameters and papers from their docstrings."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import torch

from edgepfl import algorithms
from edgepfl.algorithms import Algorithm, Setting, has, hyperparameters
from edgepfl.errors import ConfigError
from edgepfl.plan import Entry, Reduce, Role, Shape, Slot
from edgepfl.tree import Tree, Trees

ROLES: Mapping[str, str] = {"runtime": "runtime input", "fixed": "shapes the graphs", "server": "the server's"}
"""What a hyperparameter can be, in words."""

_LETTERS: Mapping[Shape, str] = {Shape.PARAMS: "d", Shape.SHARED: "d_f", Shape.PERSONAL: "d_h", Shape.SCALAR: ""}
_ORDER = ("d", "d_f", "d_h")
_PAPER = re.compile(r'.*? et al\. \d{4}, "[^"]+"')


@dataclass(frozen=True)
class Size:
    """How many numbers, as a sum of products, such as ``d_f + 2*classes*width``.

    Attributes:
        terms: each product and how often it counts; the empty product is a plain number.
    """

    terms: Mapping[str, int]

    def __add__(self, other: Size) -> Size:
        return Size(Counter(self.terms) + Counter(other.terms))

    def __str__(self) -> str:
        terms = dict(self.terms)
        both = min(terms.get("d_f", 0), terms.get("d_h", 0))  # the shared and the personal part make the whole
        whole = {"d": terms.get("d", 0) + both, "d_f": terms.get("d_f", 0) - both, "d_h": terms.get("d_h", 0) - both}
        others = sorted((product, count) for product, count in terms.items() if product and product not in whole)
        sums = [*((product, whole[product]) for product in _ORDER), *others, ("", terms.get("", 0))]
        return " + ".join(_term(product, count) for product, count in sums if count) or "0"


@dataclass(frozen=True)
class Row:
    """An algorithm's line of the table; sizes count numbers, of 4 bytes each.

    Attributes:
        name: of its file.
        down: what the server sends to a device in a round.
        up: what a device sends.
        kept: what stays on the device from round to round.
        server: the server's state between rounds.
        sent: "broadcast", the same to all, or "unicast".
        participation: which devices a round needs: "any" or "all".
        evaluated: the model that the paper evaluates.
        paper: authors, year and title.
    """

    name: str
    down: str
    up: str
    kept: str
    server: str
    sent: str
    participation: str
    evaluated: str
    paper: str


SIZES = ("down", "up", "kept", "server")
"""The fields of a :class:`Row` that are sizes."""


@dataclass(frozen=True)
class SlotRow:
    """A slot, for people; ``note`` says where its value comes from or goes."""

    name: str
    role: str
    size: str
    note: str


@dataclass(frozen=True)
class Hyperparameter:
    """A hyperparameter: ``meaning`` holds the published values too, ``choices`` is empty for numbers."""

    name: str
    role: str
    default: str
    choices: tuple[str, ...]
    meaning: str


@dataclass(frozen=True)
class Description:
    """All there is to say of an algorithm.

    Attributes:
        row: its line of the table.
        source: the paper, and which of its algorithms.
        text: the equations.
        slots: what a device gets, keeps, computes and sends.
        state: what the server keeps.
        hyperparameters: with their defaults.
        options: what a value changes in the table, such as ``{"option=I": {"up": "2*d"}}``.
        refused: weightings that break the theory, with the reason.
        personal: patterns of the personal parameters, where the export names none.
    """

    row: Row
    source: str
    text: str
    slots: tuple[SlotRow, ...]
    state: tuple[SlotRow, ...]
    hyperparameters: tuple[Hyperparameter, ...]
    options: Mapping[str, Mapping[str, str]]
    refused: Mapping[str, str]
    personal: tuple[str, ...]


def rows() -> list[Row]:
    """All algorithms with their defaults, in the order of their names."""
    return [row(algorithms.build(name, {})) for name in algorithms.names()]


def row(algorithm: Algorithm) -> Row:
    """The line of an algorithm with these hyperparameters."""
    slots = algorithm.declared()
    state = total(_state(algorithm).values())
    found = _PAPER.match(_source(algorithm))
    return Row(
        name=_name(algorithm),
        down=str(_of_role(algorithm, Role.DOWN)),
        up=str(_of_role(algorithm, Role.UP)),
        kept=str(_of_role(algorithm, Role.KEEP)),
        server=" + ".join(filter(None, [str(state), algorithm.grows])),
        sent="unicast" if any(slot.addressed for slot in slots.values()) else "broadcast",
        participation=algorithm.participation.value,
        evaluated=algorithm.evaluated,
        paper=found.group() if found else "",
    )


def describe(algorithm: Algorithm) -> Description:
    """All about an algorithm with these hyperparameters."""
    kind = type(algorithm)
    text, _, _ = inspect.cleandoc(kind.__doc__ or "").partition("\nAttributes:\n")
    return Description(
        row=row(algorithm),
        source=_source(algorithm),
        text=text.strip(),
        slots=tuple(_slot_rows(algorithm)),
        state=tuple(
            SlotRow(name, "state", str(size), "" if size.terms else "grows with the fleet")
            for name, size in _state(algorithm).items()
        ),
        hyperparameters=tuple(_hyperparameters(algorithm)),
        options=_options(algorithm),
        refused={weighting.value: reason for weighting, reason in kind.refused.items()},
        personal=kind.personal_default,
    )


def size_of(slot: Slot, dims: Mapping[str, int]) -> Size:
    """The numbers in a slot.

    Args:
        slot: an algorithm's.
        dims: the dimensions whose size the algorithm itself sets; the model sets the others.
    """
    if isinstance(slot.shape, Shape):
        return Size({_LETTERS[slot.shape]: 1})
    names, count = [], 1
    for dim in slot.shape:
        size = dims.get(dim) if isinstance(dim, str) else dim
        if size is None:
            names.append(str(dim))
        else:
            count *= size
    return Size({"*".join(sorted(names)): count})


def total(sizes: Iterable[Size]) -> Size:
    """The sum."""
    return sum(sizes, Size({}))


def _term(product: str, count: int) -> str:
    if not product:
        return str(count)
    return product if count == 1 else f"{count}*{product}"


def _name(algorithm: Algorithm) -> str:
    return type(algorithm).__module__.rpartition(".")[2]


def _dims(algorithm: Algorithm) -> dict[str, int]:
    values = {name: getattr(algorithm, name) for name in hyperparameters(type(algorithm))}
    return {name: value for name, value in values.items() if type(value) is int}


def _of_role(algorithm: Algorithm, role: Role) -> Size:
    dims = _dims(algorithm)
    return total(size_of(slot, dims) for slot in algorithm.declared().values() if slot.role is role)


def _state(algorithm: Algorithm) -> dict[str, Size]:
    """The slots of the server's state before the first round: its DOWN slots that are filled, and what init gives."""
    dims = _dims(algorithm)
    sent = {name: slot for name, slot in algorithm.declared().items() if slot.role is Role.DOWN}
    filled = {name: size_of(slot, dims) for name, slot in sent.items() if slot.first is not None}
    shapes = {slot.shape for slot in sent.values()}
    shared, personal = (bool(shapes & {part, Shape.PARAMS}) for part in (Shape.SHARED, Shape.PERSONAL))

    def counted(d_f: int, d_h: int) -> dict[str, int]:
        parts = ((shared, "body", d_f), (personal, "head", d_h))
        trees = [Tree({name: torch.zeros(size)}) if is_sent else Tree({}) for is_sent, name, size in parts]
        return _counts(algorithm.init_apart(*trees))

    base, more_f, more_h = counted(2, 3), counted(3, 3), counted(2, 4)
    made: dict[str, Size] = {}
    for name, count in base.items():
        f, h = more_f[name] - count, more_h[name] - count
        made[name] = Size({"d_f": f, "d_h": h, "": count - 2 * f - 3 * h}) + Size({})  # without zeros
    return {**filled, **made}


def _counts(state: Trees) -> dict[str, int]:
    return {name: sum(tensor.numel() for tensor in tree.values()) for name, tree in state.items()}


def _slot_rows(algorithm: Algorithm) -> Iterator[SlotRow]:
    order = list(Role)
    dims = _dims(algorithm)
    for name, slot in sorted(algorithm.declared().items(), key=lambda item: order.index(item[1].role)):
        yield SlotRow(name, slot.role.value, str(size_of(slot, dims)), _note(slot))
    for name, reduce in algorithm.rebuilt.items():
        yield SlotRow(name, "rebuilt", "0", f"the server computes it from the upload; {_REDUCED[reduce]}")


_REDUCED: Mapping[Reduce, str] = {
    Reduce.MEAN: "the cohort's mean",
    Reduce.SUM: "the cohort's sum",
    Reduce.STACK: "of each device of the cohort",
}


def _note(slot: Slot) -> str:
    first = f"{slot.first:.6g}" if isinstance(slot.first, float) else slot.first
    match slot.role:
        case Role.DOWN if slot.addressed:
            return "each device gets its own"
        case Role.DOWN | Role.KEEP if first is not None:
            return "starts as the initial model" if first == "model" else f"starts as {first}"
        case Role.UP if slot.reduce is not None:
            return _REDUCED[slot.reduce]
        case Role.GIVEN:
            return "the agent knows it"
        case Role.NOISE:
            return "standard normals, drawn for each minibatch"
        case Role.TELL:
            return "in the report's metrics"
        case _:
            return ""


def _hyperparameters(algorithm: Algorithm) -> Iterator[Hyperparameter]:
    kind = type(algorithm)
    meanings = {**attributes_of(Algorithm), **attributes_of(kind)}
    for name, role in hyperparameters(kind).items():
        value = getattr(algorithm, name)
        if name == "inner_steps" and not has(kind, Entry.INNER):
            continue
        choices = tuple(map(str, type(value))) if isinstance(value, StrEnum) else ()
        yield Hyperparameter(name, ROLES[role], _text(value), choices, meanings.get(name, ""))


def attributes_of(kind: type) -> dict[str, str]:
    """Each attribute's meaning, from the ``Attributes:`` of a class's docstring."""
    _, _, section = inspect.cleandoc(kind.__doc__ or "").partition("\nAttributes:\n")
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        entry = re.match(r" {4}(\w+): (.*)", line)
        if entry:
            name = entry[1]
            found[name] = entry[2]
        elif name and line.strip():
            found[name] += f" {line.strip()}"
    return found


def _options(algorithm: Algorithm) -> dict[str, dict[str, str]]:
    """The values of the graphs' options that change a size of the table, and what they make of it."""
    usual = row(algorithm)
    found: dict[str, dict[str, str]] = {}
    for name, value in _other_values(algorithm):
        try:
            changed = row(_with(algorithm, {name: value}))
        except ConfigError:  # it contradicts another hyperparameter
            continue
        if differences := differing(usual, changed):
            found[f"{name}={value}"] = differences
    return found


def differing(usual: Row, changed: Row) -> dict[str, str]:
    """The sizes of a row that are others than those of the usual one."""
    pairs = ((field, getattr(usual, field), getattr(changed, field)) for field in SIZES)
    return {field: after for field, before, after in pairs if before != after}


def _other_values(algorithm: Algorithm) -> Iterator[tuple[str, str]]:
    for name, role in hyperparameters(type(algorithm)).items():
        value = getattr(algorithm, name)
        choices = [*type(value)] if isinstance(value, StrEnum) else [True, False] if isinstance(value, bool) else []
        if role == "fixed":
            yield from ((name, _text(choice)) for choice in choices if choice != value)


def _with(algorithm: Algorithm, settings: Mapping[str, Setting]) -> Algorithm:
    values = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}
    return algorithms.build(_name(algorithm), {**values, **settings})


def _text(value: Setting) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _source(algorithm: Algorithm) -> str:
    """The paragraph of the module's docstring that names the paper, in one line."""
    text = inspect.cleandoc(importlib.import_module(type(algorithm).__module__).__doc__ or "")
    papers = (paragraph for paragraph in text.split("\n\n") if " et al. " in paragraph)
    return " ".join(next(papers, "").split())

"""The catalogue says what the slots say, what really is in the server's state, and what the page in docs/ shows."""

from __future__ import annotations

import json
import math
import re
import sys
import types
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from edgepfl import algorithms, presets
from edgepfl.algorithms import Algorithm, Cohort
from edgepfl.errors import ConfigError
from edgepfl.plan import Reduce, Role, SlotPlan, TensorSpec, resolve
from edgepfl.tree import Tree, Trees
from exporters import catalogue, catalogue_page
from exporters.catalogue import Size, describe, row
from exporters.catalogue_command import main

PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"
EVERY = algorithms.names()
MODEL = {"body": TensorSpec((3, 2)), "head": TensorSpec((7,))}
DIMS = {"batch": 2, "classes": 4, "width": 5, "components": 3, "draws": 4}

BY_HAND = {  # down, up, kept and server, from the papers' updates and what our server sums
    "fedavg": ("d", "d", "0", "d"),
    "ditto": ("d", "d", "d", "d"),
    "apfl": ("d", "d", "d + 1", "d"),  # v and alpha
    "fedper": ("d_f", "d_f", "d_h", "d_f"),
    "scaffold": ("2*d", "d", "d", "3*d"),  # w and c down; c_k; w, c and the sum of the c_k
    "feddc": ("2*d", "d", "2*d", "4*d"),  # h_k and c_k; w, c and the sums of both
    "feddyn": ("d", "d", "d", "3*d"),  # g_k; w, their sum and the mean
    "proxskip": ("d", "d", "2*d", "d"),
    "pfedme": ("d", "d", "2*d", "d"),  # theta and w_k,R
    "fedem": ("3*d", "3*d", "3", "3*d"),
    "fedcr": (
        "d_f + 2*classes*width",
        "d_f + classes + 2*classes*width",
        "d_h",
        "d_f + 2*classes*width",
    ),
    "fedamp": ("d", "d", "d", "d + m*d + m*m"),
    "fpfc": ("d + 1", "d", "d_h", "d + 1 + m*d_h + m*(m-1)/2*d_h + 4*m*m"),
}


def built(name: str, **settings: str) -> Algorithm:
    return algorithms.build(name, settings)


def resolved(algorithm: Algorithm) -> dict[str, SlotPlan]:
    return resolve(algorithm.declared(), MODEL, ("head",), algorithms.hyperparameters(type(algorithm)), DIMS)


def numbers(expression: str, m: int = 0) -> float:
    letters = {"d": 13, "d_f": 6, "d_h": 7, "classes": 4, "width": 5, "m": m, "(m-1)/2": (m - 1) / 2}
    return sum(
        math.prod(letters[factor] if factor in letters else int(factor) for factor in term.split("*"))
        for term in expression.split(" + ")
    )


def count(trees: Trees) -> int:
    return sum(tensor.numel() for tree in trees.values() for tensor in tree.values())


@pytest.mark.parametrize("name", BY_HAND)
def test_sizes_are_those_of_a_hand_count(name: str) -> None:
    found = row(built(name))
    assert (found.down, found.up, found.kept, found.server) == BY_HAND[name]
    assert found.sent == ("unicast" if name in {"fedamp", "fpfc"} else "broadcast")


@pytest.mark.parametrize("name", EVERY)
def test_sizes_are_those_of_the_slots_of_a_model(name: str) -> None:
    algorithm, found = built(name), row(built(name))
    slots = resolved(algorithm)
    for role, told in ((Role.DOWN, found.down), (Role.UP, found.up), (Role.KEEP, found.kept)):
        sizes = [spec.size for slot in slots.values() if slot.role is role for spec in slot.tensors.values()]
        assert numbers(told) == sum(sizes)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("m", [2, 5])
def test_the_servers_state_after_a_round_is_what_the_table_says(name: str, m: int) -> None:
    algorithm = built(name)
    slots = resolved(algorithm)
    zeros = {
        slot: Tree({k: torch.zeros(spec.shape) for k, spec in plan.tensors.items()}) for slot, plan in slots.items()
    }
    down = {slot: zeros[slot] for slot, plan in slots.items() if plan.role is Role.DOWN}
    sent = {tensor for tree in down.values() for tensor in tree}
    shared, personal = (Tree({k: torch.zeros(MODEL[k].shape) for k in {key} & sent}) for key in ("body", "head"))
    state = {**{k: v for k, v in down.items() if slots[k].first is not None}, **algorithm.init_apart(shared, personal)}
    up = {slot: zeros[slot] for slot, plan in slots.items() if plan.role is Role.UP}
    total = {slot: tree for slot, tree in up.items() if slots[slot].reduce is not Reduce.STACK}
    stack = {slot: tree.map(lambda t: torch.stack([t] * m)) for slot, tree in up.items() if slot not in total}
    devices = tuple(f"pi-{number}" for number in range(m))
    whole = {**total, **algorithm.rebuild(up, 3)}
    after = algorithm.update(state, Cohort(devices, (8,) * m, (3,) * m, whole, stack, 1, devices))
    if name == "fpfc":  # the table tells of the coordinator's engines, and this one keeps two vectors for each pair
        assert count(after) > numbers(row(algorithm).server, m) - 4 * m * m
    else:
        assert count(after) == numbers(row(algorithm).server, m)
    assert count(state) == sum(numbers(each.size) for each in describe(algorithm).state)


@pytest.mark.parametrize("name", EVERY)
def test_everything_is_said_of_every_algorithm(name: str) -> None:
    found = describe(built(name))
    assert found.row.name == name
    assert re.search(r'^[A-Z].* et al\. 20\d\d, "[^"]+"$', found.row.paper)
    assert found.source.startswith(found.row.paper)
    assert found.row.evaluated
    assert "::" in found.text or "``" in found.text  # equations
    assert "Attributes:" not in found.text
    for each in found.hyperparameters:
        assert each.meaning
        assert each.role in {"runtime input", "shapes the graphs", "the server's"}
        assert not each.choices or each.default in each.choices
    own = algorithms.hyperparameters(algorithms.load(name)).keys() - {"inner_steps"}
    assert own <= {each.name for each in found.hyperparameters}


def test_a_size_adds_up_and_reads_like_a_sum() -> None:
    parts = Size({"d_f": 1, "": 1}) + Size({"d_h": 2}) + Size({"classes*width": 3})
    assert str(parts) == "d + d_h + 3*classes*width + 1"
    assert str(Size({})) == "0"
    assert numbers(str(parts)) == 13 + 7 + 3 * 20 + 1


def test_options_tell_what_they_change() -> None:
    assert describe(built("feddc")).options == {
        "grad_correction=last_update": {"up": "2*d"},
        "grad_correction=none": {"down": "d", "kept": "d", "server": "2*d"},
    }
    assert describe(built("scaffold", option="I")).options == {"option=II": {"up": "d"}}
    assert describe(built("feddyn")).options == {"report_mean=true": {"down": "2*d"}}
    assert row(built("fedem", components="5")).up == "5*d"
    assert row(built("fedper", eval_extractor="local")).kept == "d"


def test_slots_say_where_their_values_come_from() -> None:
    notes = {slot.name: (slot.role, slot.size, slot.note) for slot in describe(built("fpfc")).slots}
    assert notes["zeta"] == ("down", "d_h", "each device gets its own")
    assert notes["omega"] == ("keep", "d_h", "starts as the initial model")
    assert notes["fused"] == ("up", "d_h", "of each device of the cohort")
    rebuilt = {slot.name: slot.note for slot in describe(built("scaffold")).slots if slot.role == "rebuilt"}
    assert rebuilt == {"variate": "the server computes it from the upload; the cohort's sum"}


def test_meanings_come_whole_from_the_docstring() -> None:
    meanings = {each.name: each for each in describe(built("ditto")).hyperparameters}
    assert meanings["lam"].meaning == "pull of the global model on the personal one (1, or chosen from 0.1, 1 and 2)."
    assert meanings["personal_steps"].meaning.endswith("0 for all (2 on Fashion-MNIST, 1 on vehicle).")
    assert (meanings["lam"].role, meanings["lam"].default) == ("runtime input", "0.1")
    assert meanings["weighting"].choices == ("examples", "uniform")
    assert "inner_steps" not in meanings  # Ditto has no inner solve
    assert "inner_steps" in {each.name for each in describe(built("pfedme")).hyperparameters}


def test_the_page_shows_the_tables_of_the_code(tmp_path: Path) -> None:
    again = tmp_path / "algorithms.md"
    again.write_text(PAGE.read_text("utf-8"), "utf-8")
    assert main(["--markdown", str(again)]) == 0
    assert again.read_text("utf-8") == PAGE.read_text("utf-8"), "edgepfl algorithms --markdown docs/algorithms.md"
    shown = re.findall(r"^\| `([a-z0-9]+)` \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert tuple(shown) == EVERY
    assert all(f"| `{name}` |" in PAGE.read_text("utf-8") for name in presets.every())


def test_a_page_without_a_place_for_the_tables_stays_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Mine\n<!-- algorithms -->\n<!-- /algorithms -->\n", "utf-8")
    with pytest.raises(ConfigError, match=r"no place for the presets.*<!-- /presets -->"):
        main(["--markdown", str(page)])
    assert page.read_text("utf-8") == "# Mine\n<!-- algorithms -->\n<!-- /algorithms -->\n"
    with pytest.raises(ConfigError, match="cannot be read"):
        main(["--markdown", str(tmp_path / "none.md")])


def test_a_table_has_its_columns_one_below_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    head, *lines = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert tuple(line.split()[0] for line in lines) == EVERY
    for column in catalogue_page.HEAD[1:]:
        place = head.index(column)
        assert all(line[place - 1] == " " and line[place] != " " for line in lines)


def test_programs_get_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    def told(*words: str) -> object:
        assert main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    rows = told()
    assert isinstance(rows, list)
    assert rows[EVERY.index("apfl")]["kept"] == "d + 1"
    one = told("feddc", "--set", "grad_correction=last_update")
    assert isinstance(one, Mapping)
    assert one["row"]["up"] == "2*d"
    assert "change" in [slot["name"] for slot in one["slots"]]
    assert one["presets"] == ["feddc/cifar10", "feddc/mnist", "feddc/synthetic"]
    found = told("--presets")
    assert isinstance(found, Mapping)
    assert found.keys() == presets.every().keys()
    assert found["ditto/vehicle"]["batch"] == 32
    only = told("ditto", "--presets")
    assert isinstance(only, Mapping)
    assert only.keys() == {"ditto/fmnist", "ditto/vehicle"}


def test_people_get_equations_slots_and_published_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["feddc", "--set", "grad_correction=none"]) == 0
    told = capsys.readouterr().out
    for words in (
        'Gao et al. 2022, "FedDC',
        "h_k <- h_k + (x - w)",
        "other than by default: down d, kept d, server 2*d",
        "weighting=examples is refused: the drifts",
        "grad_correction = none of scaffold, last_update, none (shapes the graphs)",
        "(0.1 on MNIST, 0.01 on CIFAR-10, 0.005 on synthetic data)",
        "grad_correction=last_update: down 2*d",
        "feddc/synthetic",
    ):
        assert words in told
    assert not re.search(r"^ +c_k +keep", told, re.MULTILINE)
    assert main(["feddc", "--presets"]) == 0
    assert "source: authors' code (gaoliang13/FedDC), example_code_minist.py" in capsys.readouterr().out
    assert main(["l2sgd", "--presets"]) == 0
    assert capsys.readouterr().out == "There is none.\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "no algorithm 'nothing'. Choose one of apfl"),
        (["nothing", "--presets"], "no algorithm 'nothing'"),
        (["ditto", "--set", "mu=1"], "no hyperparameter 'mu'. It has inner_steps"),
        (["ditto", "--set", "lam"], "'lam' is no setting"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        main(words)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "words", [["--set", "lr=1"], ["ditto", "--markdown", "a.md"], ["--json", "--markdown", "a.md"]]
)
def test_words_that_do_not_go_together(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "edgepfl algorithms: error:" in capsys.readouterr().err


def test_help_tells_a_newcomer_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    told = capsys.readouterr().out
    assert "edgepfl algorithms ditto " in told
    assert "edgepfl export --algorithm NAME" in told
    assert main(["ditto"]) == 0


def test_the_pages_example_of_a_new_algorithm_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    module = types.ModuleType("edgepfl.algorithms.fedavgm")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where dataclasses look for annotations
    exec(compile(code, "fedavgm.py", "exec"), module.__dict__)  # noqa: S102  our own page
    algorithm: Algorithm = module.FedAvgM(beta=0.5)
    found = describe(algorithm)
    assert (found.row.down, found.row.up, found.row.kept, found.row.server) == ("d", "d", "0", "2*d")
    assert [each.meaning for each in found.hyperparameters if each.name == "beta"] == ["momentum of the server (0.9)."]
    state = algorithm.init(Tree({"w": torch.tensor([1.0])}))
    moved = Tree({"w": torch.tensor([2.0])})
    for _ in range(2):
        state = algorithm.update(state, Cohort(("a",), (1,), (1,), {"delta": moved}, {}))
    assert state["v"]["w"].item() == 3  # 2, then 0.5 * 2 + 2
    assert state["w"]["w"].item() == 6  # 1 + 2 + 3
    assert catalogue.row(algorithm).paper.startswith("Hsu et al. 2019")

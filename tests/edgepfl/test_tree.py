from __future__ import annotations

from random import Random
from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgepfl.errors import PlanError
from edgepfl.tree import Tree

# Eighths of small integers: sums and products of a few of them are exact in float64, so the laws hold bit for bit.
EXACT = st.integers(-512, 512).map(lambda n: n / 8)
SHAPES = {"bias": (2,), "scale": (), "weight": (2, 3)}


def trees() -> st.SearchStrategy[Tree]:
    tensors = {name: arrays.arrays(np.float64, shape, elements=EXACT) for name, shape in SHAPES.items()}
    return st.fixed_dictionaries(tensors).map(Tree)


def same(a: Tree, b: Tree) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@given(trees(), trees(), trees(), EXACT, EXACT)
def test_the_laws_of_a_vector_space(u: Tree, v: Tree, w: Tree, a: float, b: float) -> None:
    assert same((u + v) + w, u + (v + w))
    assert same(u + v, v + u)
    assert same(u - v, u + -v)
    assert same(u - u, 0.0 * u)
    assert same(a * (u + v), a * u + a * v)
    assert same((a + b) * u, a * u + b * u)
    assert same((a * b) * u, a * (b * u))
    assert same(1.0 * u, u)
    assert same(u * a, a * u)
    assert same(u / 8, u * 0.125)


@given(trees(), trees(), trees(), EXACT)
def test_the_inner_product_is_symmetric_and_linear(u: Tree, v: Tree, w: Tree, a: float) -> None:
    assert u.dot(v) == v.dot(u)
    assert (u + a * v).dot(w) == u.dot(w) + a * v.dot(w)
    assert u.dot(u) >= 0
    assert u.dot(v) == sum(float(np.sum(u[name] * v[name])) for name in SHAPES)


@given(trees(), trees())
def test_products_and_quotients_go_tensor_by_tensor(u: Tree, v: Tree) -> None:
    assert all(np.array_equal((u * v)[name], u[name] * v[name]) for name in SHAPES)
    divisor = v * v + 1.0
    assert all(np.array_equal((u / divisor)[name], u[name] / divisor[name]) for name in SHAPES)
    assert all(np.array_equal((u - 0.5)[name], u[name] - 0.5) for name in SHAPES)


@given(st.dictionaries(st.text(max_size=4), EXACT, max_size=6), st.randoms())
def test_the_order_is_that_of_the_names(tensors: dict[str, float], random: Random) -> None:
    names = list(tensors)
    random.shuffle(names)
    tree = Tree({name: np.float64(tensors[name]) for name in names})
    assert list(tree) == sorted(tensors)
    assert len(tree) == len(tensors)
    assert [value for _, value in tree.items()] == [tensors[name] for name in sorted(tensors)]


@pytest.mark.parametrize("operation", ["__add__", "__sub__", "__mul__", "__truediv__", "dot"])
def test_trees_of_different_tensors_do_not_combine(operation: str) -> None:
    left, right = Tree({"a": np.ones(2), "b": np.ones(1)}), Tree({"a": np.ones(2), "c": np.ones(1)})
    with pytest.raises(PlanError, match="different tensors met: b, c") as caught:
        getattr(left, operation)(right)
    assert "like()" in caught.value.remedy


FACTORS = [3, 3.0, np.float32(3), np.float64(3), np.int64(3)]
PAIRS = [(make, factor) for make in (np.ones, torch.ones) for factor in FACTORS]
PAIRS += [(np.ones, np.array(3.0)), (torch.ones, torch.tensor(3.0))]  # 0-d tensors, each with its own kind


@pytest.mark.parametrize(("make", "factor"), PAIRS, ids=lambda value: getattr(value, "__name__", type(value).__name__))
def test_numbers_multiply_from_either_side(make: Any, factor: Any) -> None:  # noqa: ANN401  the point is any of them
    tree = Tree({"a": make(2), "b": make((2, 2))})
    for product in (factor * tree, tree * factor):
        assert isinstance(product, Tree)
        assert np.asarray(product["a"]).tolist() == [3.0, 3.0]
        assert tuple(product["b"].shape) == (2, 2)
    assert np.asarray((tree / factor)["a"]) == pytest.approx([1 / 3, 1 / 3])


@pytest.mark.parametrize("factor", FACTORS[2:], ids=lambda factor: type(factor).__name__)
def test_a_float32_tree_of_torch_stays_float32(factor: Any) -> None:  # noqa: ANN401  likewise
    tree = Tree({"a": torch.ones(2)})
    assert (factor * tree)["a"].dtype == torch.float32
    assert (tree - factor * tree)["a"].dtype == torch.float32


@pytest.mark.parametrize("factor", [0.5, np.float32(0.5), np.array(0.5, np.float32)], ids=["float", "scalar", "0-d"])
def test_a_float32_tree_of_numpy_stays_float32(factor: Any) -> None:  # noqa: ANN401  likewise
    tree = Tree({"a": np.ones(2, np.float32)})
    assert (factor * tree)["a"].dtype == np.float32
    assert (tree / factor + tree)["a"].dtype == np.float32


def test_or_prefers_the_right_and_like_takes_a_part() -> None:
    left, right = Tree({"a": np.zeros(1), "b": np.zeros(1)}), Tree({"b": np.ones(1), "c": np.ones(1)})
    both = left | right
    assert [both[name].item() for name in both] == [0.0, 1.0, 1.0]
    assert list(both.like(left)) == ["a", "b"]
    with pytest.raises(KeyError):
        left.like(right)


def test_a_scalar_is_its_only_tensor() -> None:
    assert Tree.scalar(2.5).value == 2.5
    assert Tree({"a": np.ones(2)}).value.tolist() == [1.0, 1.0]
    with pytest.raises(PlanError, match="this one has 2"):
        Tree({"a": np.ones(1), "b": np.ones(1)}).value  # noqa: B018  the property raises
    with pytest.raises(PlanError, match="this one has 0"):
        Tree({}).value  # noqa: B018  likewise


def test_it_shows_shapes_and_not_numbers() -> None:
    assert repr(Tree({"b": np.ones((2, 3)), "a": torch.ones(1)})) == "Tree(a: (1,), b: (2, 3))"
    assert repr(Tree.scalar(1.0)) == "Tree(: ())"


def test_it_does_not_change_with_the_mapping_it_was_made_from() -> None:
    tensors = {"a": np.ones(1)}
    tree = Tree(tensors)
    tensors["b"] = np.ones(1)
    assert list(tree) == ["a"]
    with pytest.raises(TypeError):
        tree["c"] = np.ones(1)  # type: ignore[index]  # the point

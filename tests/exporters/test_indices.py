"""How many whole numbers an input has, where the user does not say."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from edgepfl.plan import ExampleSpec
from exporters.indices import bounded
from exporters.model import model_of

IDS, X = ExampleSpec((5,), "int64"), ExampleSpec((3,))


class _Words(nn.Module):
    """Like a language model: the table that the input does not go to is the smallest."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(2, 4)
        self.words = nn.Embedding(50, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        words = self.words(ids.view(-1, ids.shape[-1])) + self.kinds(torch.zeros_like(ids))
        return self.head(self.norm(words.mean(1)))  # type: ignore[no-any-return]  # torch's untyped call


class _Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items, self.again = nn.Embedding(7, 4), nn.Embedding(30, 4), nn.Embedding(20, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor, user: Tensor, items: Tensor, flag: Tensor) -> Tensor:
        inner = self.users(user).sum(1) + self.items(items).sum(1) + self.again(items).sum(1)
        return self.head(inner * flag.sum(1, keepdim=True) + x.sum(1, keepdim=True))  # type: ignore[no-any-return]  # likewise


def test_the_table_that_looks_an_input_up_tells() -> None:
    module = _Words()
    model = model_of(module, [IDS], batch=3)
    assert model.inputs == (ExampleSpec((5,), "int64", high=50),)
    assert module.training
    assert module.norm.training
    assert module.norm.num_batches_tracked == 0


def test_each_input_has_tables_of_its_own_and_the_smallest_of_them_counts() -> None:
    found = bounded([X, IDS, IDS, ExampleSpec((5,), "int64", high=2)], _Two(), 3)
    assert [spec.high for spec in found] == [0, 7, 20, 2]
    assert found[0] == X


def test_where_none_looks_it_up_at_once_it_is_the_smallest_of_all() -> None:
    class Shifted(_Words):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids * 1)

    assert bounded([IDS], Shifted(), 3)[0].high == 2
    assert bounded([IDS], nn.Linear(5, 3), 3)[0].high == 2


def test_a_module_that_fails_is_left_to_fail_later() -> None:
    module = _Words()
    assert bounded([IDS, X], module, 3)[0].high == 2
    assert module.training
    assert torch.is_grad_enabled()

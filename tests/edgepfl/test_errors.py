from __future__ import annotations

import pickle

import pytest

from edgepfl import errors
from edgepfl.errors import EdgepflError

KINDS = sorted(
    (kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, EdgepflError)),
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_says_what_where_and_what_to_do(kind: type[EdgepflError]) -> None:
    error = kind("the digest differs", where="model.safetensors", remedy="Export it again")
    assert str(error) == "model.safetensors: the digest differs. Export it again"
    assert (error.what, error.where, error.remedy) == ("the digest differs", "model.safetensors", "Export it again")
    assert isinstance(error, EdgepflError)
    assert kind.__doc__
    assert kind.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize(
    ("where", "remedy", "text"),
    [("", "", "it broke"), ("a.toml", "", "a.toml: it broke"), ("", "Mend it", "it broke. Mend it")],
)
def test_what_is_missing_leaves_no_trace(where: str, remedy: str, text: str) -> None:
    error = EdgepflError("it broke", where=where, remedy=remedy)
    assert str(error) == text
    assert error.args == ("it broke",)


def test_an_error_crosses_a_process_border_whole() -> None:
    error = pickle.loads(pickle.dumps(errors.CodecError("it broke", where="w", remedy="Mend it")))  # noqa: S301  our own
    assert type(error) is errors.CodecError
    assert str(error) == "w: it broke. Mend it"

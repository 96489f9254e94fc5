"""What is meant by ``MODULE:NAME``, as people type it."""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from edgepfl.errors import ConfigError, EdgepflError, ExportError

_NAME = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_PATH = re.compile(rf"({_NAME}:{_NAME})(\(.*\))?", re.DOTALL)


@dataclass(frozen=True)
class Named:
    """A function or class, or what it gives.

    Attributes:
        path: ``MODULE:NAME``; the name may have dots, such as ``Config.small``.
        called: whether its result is meant.
        positional: what it is called with.
        keywords: likewise, by name.
    """

    path: str
    called: bool = False
    positional: tuple[object, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def value(self, where: str) -> object:
        """The function or class, or what it gives.

        Args:
            where: the option that it is from, for messages.

        Raises:
            ConfigError: there is no such thing.
            ExportError: it fails when it is called.
        """
        found = function(self.path, where, remedy=f"Text is written in quotes: \"'{self.path}'\"")
        if not self.called:
            return found
        try:
            return found(*self.positional, **self.keywords)
        except EdgepflError:
            raise
        except Exception as error:  # it raises whatever it likes
            raise ExportError(f"{self.path} failed ({error})", where=where, remedy="Check its arguments") from error


def read(text: str, where: str) -> object:
    """What a value on the command line means.

    ``3``, ``(1, 2)``, ``None`` and ``'text'`` are what Python takes them for; ``torch.nn:GELU`` is that class, and
    ``transformers:BertConfig(hidden_size=32)`` what it gives for such arguments; all else is text.

    Args:
        text: the value.
        where: the option that it is from, for messages.

    Raises:
        ConfigError: something is called with arguments that Python alone does not understand.
    """
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        pass
    found = _PATH.fullmatch(text)
    if found is None:
        return text
    path, arguments = found.groups()
    return Named(path) if arguments is None else Named(path, True, *_arguments(arguments, where))  # noqa: FBT003  called


def _arguments(text: str, where: str) -> tuple[tuple[object, ...], dict[str, object]]:
    """``(3, width=4)`` as arguments by place and by name."""
    try:
        return _literals(ast.parse(f"_{text}", mode="eval").body)
    except (ValueError, SyntaxError) as error:
        raise ConfigError(
            f"{text} are no arguments that can be read",
            where=where,
            remedy="Write numbers, lists and quoted text: my_models:Config(width=32, act='relu')",
        ) from error


def _literals(call: ast.expr) -> tuple[tuple[object, ...], dict[str, object]]:
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or any(not w.arg for w in call.keywords):
        raise ValueError("it is no plain call")
    keywords = {word.arg or "": ast.literal_eval(word.value) for word in call.keywords}
    return tuple(map(ast.literal_eval, call.args)), keywords


def function(path: str, where: str, remedy: str = "Write for example my_models:make_net") -> Callable[..., Any]:
    """The function or class that ``MODULE:NAME`` names; modules of the working directory are found too.

    Args:
        path: module, colon and name.
        where: the option that it is from, for messages.
        remedy: what to write instead.

    Raises:
        ConfigError: there is none.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{path!r} is not MODULE:FUNCTION", where=where, remedy=remedy)
    sys.path.insert(0, os.getcwd())  # noqa: PTH109  a string, as sys.path wants; python -m does the same
    try:
        module: object = importlib.import_module(module_name)
    except Exception as error:  # a module raises whatever it likes
        raise ConfigError(f"module {module_name} cannot be imported ({error})", where=where, remedy=remedy) from error
    finally:
        sys.path.pop(0)
    found = reduce(lambda whole, part: getattr(whole, part, None), name.split("."), module)
    if not callable(found):
        raise ConfigError(f"module {module_name} has no function or class {name!r}", where=where, remedy=remedy)
    made: Callable[..., Any] = found
    return made

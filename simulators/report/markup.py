"""HTML and SVG as values: what is text is escaped, always; only what :func:`tag` made goes through as it is."""

from __future__ import annotations

from html import escape


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(name: str, *children: str, **attributes: str | float) -> Markup:
    """An element; children that are not :class:`Markup` are escaped.

    Attribute names have ``-`` for ``_`` and no last ``_``; numbers are written with two decimals at most.

    >>> tag("p", "a < b", class_="note")
    '<p class="note">a &lt; b</p>'
    """
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{_value(of)}"' for key, of in attributes.items())
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def join(*parts: str) -> Markup:
    """Parts one after the other, escaped unless they are markup."""
    return Markup("".join(part if isinstance(part, Markup) else escape(part) for part in parts))


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return escape(value)
    return f"{value:.2f}".rstrip("0").rstrip(".")

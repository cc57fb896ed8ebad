"""Flattens nested structures of arrays, and rebuilds them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hloipu_runtime.errors import StreamError
from hloipu_runtime.plain_text import printable

MAX_DEPTH = 32
"""Of nesting; elements come from user code and may hold themselves."""


class Structure(NamedTuple):
    """How the leaves of an element are nested; dictionaries have their keys sorted."""

    kind: str
    """`leaf`, `tuple`, `list` or `dict`."""
    keys: tuple[str, ...] = ()
    parts: tuple["Structure", ...] = ()

    def __str__(self) -> str:
        parts = [str(part) for part in self.parts]
        match self.kind:
            case "dict":
                pairs = zip(self.keys, parts, strict=True)
                return "{" + ", ".join(f"{printable(key)}: {part}" for key, part in pairs) + "}"
            case "list":
                return "[" + ", ".join(parts) + "]"
            case "tuple":
                return "(" + ", ".join(parts) + ("," if len(parts) == 1 else "") + ")"
            case _:
                return "*"

    @property
    def is_named(self) -> bool:
        """Whether a dictionary is in it."""
        return self.kind == "dict" or any(part.is_named for part in self.parts)

    def paths(self) -> list[tuple[str, ...]]:
        """Return the keys and positions that lead to each leaf, in the order of leaves."""
        if self.kind == "leaf":
            return [()]
        keys = self.keys or tuple(map(str, range(len(self.parts))))
        pairs = zip(keys, self.parts, strict=True)
        return [(key, *path) for key, part in pairs for path in part.paths()]


LEAF = Structure("leaf")


def flatten(element: Any) -> tuple[list[Any], Structure]:
    """Return the leaves of an element in order, and how they were nested."""
    leaves: list[Any] = []
    structure = _split(element, leaves, 0)
    return leaves, structure


def rebuild(structure: Structure, leaves: Sequence[Any]) -> Any:
    """Return leaves nested as `structure` says."""
    return _join(structure, iter(leaves))


def _split(element: Any, leaves: list[Any], depth: int) -> Structure:
    if depth > MAX_DEPTH:
        raise StreamError(
            "E2023",
            f"an element of a stream is nested deeper than {MAX_DEPTH} levels",
            expected=f"at most {MAX_DEPTH} levels",
            found="more",
            hint="does it hold itself?",
        )
    if isinstance(element, Mapping):
        by_name = {str(key): part for key, part in element.items()}
        if len(by_name) < len(element):
            twice = ", ".join(sorted(repr(key) for key in element))
            raise StreamError(
                "E2023",
                f"keys of an element of a stream are alike as text: {twice}",
                expected="keys that differ",
                found=twice,
                hint="rename one of them",
            )
        keys = tuple(sorted(by_name))
        return Structure("dict", keys, tuple(_split(by_name[k], leaves, depth + 1) for k in keys))
    if isinstance(element, list | tuple):
        kind = "list" if isinstance(element, list) else "tuple"
        return Structure(kind, (), tuple(_split(part, leaves, depth + 1) for part in element))
    leaves.append(element)
    return LEAF


def _join(structure: Structure, leaves: Iterator[Any]) -> Any:
    if structure.kind == "leaf":
        return next(leaves)
    parts = [_join(part, leaves) for part in structure.parts]
    if structure.kind == "dict":
        return dict(zip(structure.keys, parts, strict=True))
    return tuple(parts) if structure.kind == "tuple" else parts

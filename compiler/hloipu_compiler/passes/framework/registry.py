"""The one table of passes by name; a user's file adds to it with `@register`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import TypeVar

from hloipu_compiler.passes.framework.pass_base import Pass
from hloipu_runtime.errors import UsageError
from hloipu_runtime.nearest import did_you_mean

P = TypeVar("P", bound=type[Pass])

OPTION_TYPES = {"bool": bool, "int": int, "float": float, "str": str}
"""What an option may be, by its annotation."""

ALIASES = {
    "algebraic-simplifier": "simplify-algebra",
    "algsimp": "simplify-algebra",
    "call-inliner": "inline-calls",
    "const-fold": "fold-constants",
    "constant-folding": "fold-constants",
    "cse": "eliminate-common-subexpressions",
    "dce": "eliminate-dead-code",
    "fusion": "fuse-elementwise",
    "hlo-dce": "eliminate-dead-code",
    "hlo-rematerialization": "recompute-cheap",
    "inline": "inline-calls",
    "instruction-fusion": "fuse-elementwise",
    "rematerialization": "recompute-cheap",
    "tuple-simplifier": "simplify-tuples",
    "while-loop-simplifier": "simplify-loops",
}
"""Usual names of passes, most of them XLA's, and ours."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*\Z")
_PASSES: dict[str, type[Pass]] = {}
_LATE = {
    "narrow-floats": "narrow_floats",
    "outline-blocks": "outline_blocks",
    "scaled-batch": "smaller_batch",
    "smaller-batch": "smaller_batch",
}
"""Passes of no named pipeline, and the modules that register them, imported when asked for."""


def register(cls: P) -> P:
    """Add a pass to the table.

    Raises UsageError (E3130) where the class is no pass as the table wants it, or its name is
    taken.
    """
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not _NAME.match(name):
        raise _unfit(cls, "its name is not in kebab-case", 'name: ClassVar[str] = "my-pass"')
    if not issubclass(cls, Pass) or not is_dataclass(cls) or not _is_frozen(cls):
        raise _unfit(cls, "it is not a frozen dataclass that derives from Pass", _FORM)
    if not (cls.__dict__.get("__doc__") or "").strip() or cls.__doc__.startswith(
        f"{cls.__name__}("
    ):
        raise _unfit(cls, "it has no docstring", "say in one sentence what the pass does")
    for field in fields(cls):
        if _type_name(field.type) not in OPTION_TYPES:
            wanted = ", ".join(OPTION_TYPES)
            raise _unfit(cls, f"option {field.name} is {_type_name(field.type)}", f"use {wanted}")
    if name in _PASSES or (name in _LATE and not cls.__module__.endswith(_LATE[name])):
        raise _unfit(cls, f"there is a pass {name!r} already", "take another name")
    _PASSES[name] = cls
    return cls


_FORM = "@dataclass(frozen=True, slots=True) class MyPass(Pass)"


def _is_frozen(cls: type) -> bool:
    return bool(cls.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def _type_name(annotation: object) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _unfit(cls: type, why: str, hint: str) -> UsageError:
    return UsageError("E3130", f"{cls.__name__} cannot be registered: {why}", hint=hint)


def passes() -> tuple[type[Pass], ...]:
    """Return every registered pass, by name."""
    for name in _LATE:
        _import_late(name)
    return tuple(_PASSES[name] for name in sorted(_PASSES))


def plain_name(name: str) -> str:
    """Return the name in the table of a pass that is called by a usual name, or with underscores.

    >>> plain_name("constant_folding")
    'fold-constants'
    """
    dashed = name.replace("_", "-")
    return ALIASES.get(dashed, dashed)


def pass_named(name: str) -> type[Pass]:
    """Return the pass of that name or usual name; UsageError (E3131) where there is none."""
    asked, name = name, plain_name(name)
    _import_late(name)
    if name not in _PASSES:
        passes()
        raise UsageError(
            "E3131",
            f"there is no pass {asked!r}",
            hint=did_you_mean(
                name, (*_PASSES, *ALIASES), "hloipu opt --list-passes names them all"
            ),
        )
    return _PASSES[name]


def _import_late(name: str) -> None:
    if name in _LATE and name not in _PASSES:
        import_module(f"hloipu_compiler.passes.{_LATE[name]}")


@contextmanager
def added_passes_forgotten() -> Iterator[None]:
    """Forget, at the end of the block, the passes that were registered inside of it."""
    before = {one.name: one for one in passes()}
    try:
        yield
    finally:
        _PASSES.clear()
        _PASSES.update(before)

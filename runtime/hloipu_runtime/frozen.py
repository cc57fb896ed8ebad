"""A faster `dataclass` for frozen records, for short import times.

    from hloipu_runtime.frozen import dataclass

The standard library compiles six functions for each class as its module is imported. Here one is
compiled, `__init__`, when the first record of the class is made; the others are closures over the
names of the fields. What records do is the same, and tests hold the two against each other. For
classes that are not frozen, or take options other than `slots` and `eq`, this is the standard
decorator. Not for classes whose signature is looked at before any record is made.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from inspect import get_annotations
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, slots=False, eq=True, **others):
        """Return what `dataclasses.dataclass` does."""
        if not frozen or others:
            return dataclasses.dataclass(cls, frozen=frozen, slots=slots, eq=eq, **others)

        def decorate(cls):
            return _frozen(cls, slots, eq)

        return decorate if cls is None else decorate(cls)


@dataclasses.dataclass(frozen=True)
class _Template:
    """What the standard library notes of a frozen class and of a plain field."""

    field: int


_PARAMS = _Template.__dataclass_params__  # type: ignore[attr-defined]
_PLAIN: Any = _Template.__dataclass_fields__["field"]._field_type  # type: ignore[attr-defined]
_CLASS_VARIABLES = ("ClassVar[", "typing.ClassVar[")


def _frozen(cls: Any, slots: bool, eq: bool) -> Any:
    fields = _fields_of(cls)
    names = tuple(fields)
    setattr(cls, "__dataclass_fields__", fields)  # noqa: B010 - read by the standard library
    setattr(cls, "__dataclass_params__", _PARAMS)  # noqa: B010
    own = cls.__dict__
    methods: dict[str, Any] = {"__match_args__": tuple(n for n in names if fields[n].init)}
    if "__repr__" not in own:
        methods["__repr__"] = _repr_of(tuple(n for n in names if fields[n].repr))
    if eq:
        values = _getter(tuple(n for n in names if fields[n].compare))
        if "__eq__" not in own:
            methods["__eq__"] = _eq_of(values)
        if own.get("__hash__") is None:
            methods["__hash__"] = lambda self: hash(values(self))
    for name, method in methods.items():
        setattr(cls, name, method)
    if slots:
        cls = _with_slots(cls, names)
    if "__init__" not in cls.__dict__:
        cls.__init__ = _init_when_wanted(cls)
    cls.__setattr__, cls.__delattr__ = _refusals(cls, frozenset(names))
    return cls


def _fields_of(cls: Any) -> dict[str, "Field[Any]"]:
    """Return the fields of a class and its bases, and leave defaults as attributes of the class."""
    fields: dict[str, Field[Any]] = {}
    for base in cls.__mro__[-1:0:-1]:
        known: dict[str, Any] = getattr(base, "__dataclass_fields__", {})
        # The standard library lists class variables too.
        fields |= {name: field for name, field in known.items() if field._field_type is _PLAIN}
    for name, annotation in get_annotations(cls).items():
        if _is_class_variable(annotation):
            continue
        given = cls.__dict__.get(name, MISSING)
        field: Any = given if isinstance(given, Field) else dataclasses.field(default=given)
        field.name, field.type, field.kw_only, field._field_type = name, annotation, False, _PLAIN
        if field is given:
            if field.default is MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, field.default)
        fields[name] = field
    return fields


def _is_class_variable(annotation: object) -> bool:
    if isinstance(annotation, str):
        return annotation.startswith(_CLASS_VARIABLES)
    return str(annotation).startswith("typing.ClassVar")


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what takes the values of fields off a record, as a tuple."""
    if not names:
        return lambda record: ()
    if len(names) == 1:
        get = attrgetter(names[0])
        return lambda record: (get(record),)
    return attrgetter(*names)


def _repr_of(names: tuple[str, ...]) -> Callable[[Any], str]:
    def __repr__(self: Any) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({values})"

    return __repr__


def _eq_of(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], Any]:
    def __eq__(self: Any, other: object) -> Any:
        if other.__class__ is self.__class__:
            return values(self) == values(other)
        return NotImplemented

    return __eq__


def _refusals(cls: Any, names: frozenset[str]) -> tuple[Any, Any]:
    """Return the methods that keep records from being changed."""

    def __setattr__(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return __setattr__, __delattr__


def _with_slots(cls: Any, names: tuple[str, ...]) -> Any:
    """Return the class anew with slots for its own fields: they cannot be added to one."""
    inherited = {name for base in cls.__mro__[1:] for name in getattr(base, "__slots__", ())}
    members = {
        name: value
        for name, value in cls.__dict__.items()
        if name not in names and name not in ("__dict__", "__weakref__")
    }
    members["__slots__"] = tuple(name for name in names if name not in inherited)
    members["__getstate__"] = _state_of(names)
    members["__setstate__"] = _state_set(names)
    slotted = type(cls)(cls.__name__, cls.__bases__, members)
    slotted.__qualname__ = cls.__qualname__
    return slotted


def fields_of(record: Any) -> dict[str, Any]:
    """Return the fields of a record that has a dictionary, without what it keeps beside them."""
    return {field.name: record.__dict__[field.name] for field in dataclasses.fields(record)}


def _state_of(names: tuple[str, ...]) -> Callable[[Any], list[Any]]:
    return lambda self: [getattr(self, name) for name in names]


def _state_set(names: tuple[str, ...]) -> Callable[[Any, list[Any]], None]:
    def __setstate__(self: Any, state: list[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    return __setstate__


def _init_when_wanted(cls: Any) -> Callable[..., None]:
    """Return an `__init__` that compiles the true one, puts it in its place, and runs it."""

    def __init__(self: Any, *given: Any, **named: Any) -> None:
        init = _compiled_init(cls)
        cls.__init__ = init
        init(self, *given, **named)

    return __init__


def _compiled_init(cls: Any) -> Callable[..., None]:
    scope: dict[str, Any] = {"_set": object.__setattr__, "_MISSING": MISSING}
    parameters, lines = [], []
    for name, field in cls.__dataclass_fields__.items():
        value, default = name, f"_default_{name}"
        if field.default_factory is not MISSING:
            scope[default] = field.default_factory
            value = f"{default}()"
            if field.init:
                value += f" if {name} is _MISSING else {name}"
                parameters.append(f"{name}=_MISSING")
        elif field.default is not MISSING:
            scope[default] = field.default
            value = name if field.init else default
            parameters += [f"{name}={default}"] * field.init
        elif field.init:
            parameters.append(name)
        else:
            continue
        lines.append(f"_set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    text = f"def __init__(self, {', '.join(parameters)}):\n " + "\n ".join(lines or ["pass"])
    exec(text, scope)
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    return init

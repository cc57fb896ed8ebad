"""Checks arguments of public functions by their annotations.

    @checked
    def run(self, *arguments: Any, mode: str = "functional", seed: Seed = 0) -> RunResult: ...

`int` takes integers of Python and numpy, which become Python's, and no bool; `float` any finite
real number; `bool` no integer; `Sequence` lists, tuples, arrays, but no text and no generator;
`Path` whatever has a path. `AtLeast` and `Between` within `Annotated` bound numbers. `Any` takes
everything: what it stands for is checked where it is used. A library that reads annotations was
measured: importing it costs more than half of what importing all of hloipu does.
"""

import inspect
import math
import os
import types
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from numbers import Integral, Real
from pathlib import Path
from typing import (
    IO,
    Annotated,
    Any,
    Literal,
    ParamSpec,
    TextIO,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from hloipu_runtime.errors import UsageError
from hloipu_runtime.frozen import dataclass

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_LONGEST_SHOWN = 64
_MOST_SHOWN_BITS = 128


class ArgumentError(UsageError):
    """An argument of a public function is not what the function takes."""

    def __init__(
        self, function: str, argument: str, expected: str, found: str, message: str = ""
    ) -> None:
        super().__init__(
            "E3180",
            message or f"{function}() takes {argument} as {expected}, not {found}",
            hint=f"give {expected}",
        )
        self.function = function
        self.argument = argument
        self.expected = expected
        self.found = found


@dataclass(frozen=True, slots=True)
class Between:
    """Bounds of a number, both included, within `Annotated`; `most` None: no upper one."""

    least: float
    most: float | None = None
    above: bool = False
    """Whether the lower bound is excluded."""

    def holds(self, number: Any) -> bool:
        """Whether a number lies within the bounds."""
        if number < self.least or (self.above and number == self.least):
            return False
        return self.most is None or number <= self.most

    def __str__(self) -> str:
        text = f"above {self.least}" if self.above else f"of at least {self.least}"
        return text if self.most is None else f"from {self.least} to {self.most}"


Number = Annotated[int, Between(0)]
"""A whole number of at least 0."""
Seed = Annotated[int, Between(0, 2**64 - 1)]
"""Of random numbers."""
Replicas = Annotated[int, Between(1, 65_536)]
"""As many as the option of that name takes."""
Positive = Annotated[float, Between(0, above=True)]
"""A finite number above 0."""
Progress = Callable[[int], None]
"""Told how many steps of the outermost level and iterations of loops are done, after each."""
Watch = Callable[[int, Any], None]
"""Shown each value that a step of the outermost level leaves, while it is there: not to keep."""
DEFAULT_LIVE_BYTES = 8 * 2**30
"""That the runs of all participants may take, of values in storage form; as in evaluations."""
DEFAULT_TIMEOUT_SECONDS = 60.0
"""That a device waits for one element of a queue."""
State = Mapping[Any, Any] | Sequence[Any]
"""Arrays by name or by parameter number, or all of them in the program's order."""


class _MismatchError(Exception):
    """A value is not of its kind; `place` is where in the argument, as Python writes it."""

    def __init__(self, value: object, expected: str, place: str = "") -> None:
        super().__init__()
        self.value = value
        self.expected = expected
        self.place = place


class Kind:
    """What an annotation takes; this one takes everything."""

    expected = "anything"

    def take(self, value: Any) -> Any:
        """Return a value as the function gets it; raises _MismatchError."""
        return value


_ANYTHING = Kind()


@dataclass(frozen=True, slots=True)
class _Number(Kind):
    """An integer, or a finite number."""

    whole: bool
    bounds: Between | None = None

    @property
    def expected(self) -> str:  # type: ignore[override]
        noun = "an integer" if self.whole else "a finite number"
        return noun if self.bounds is None else f"{noun} {self.bounds}"

    def take(self, value: Any) -> Any:
        if type(value) is int and self.whole and self.bounds is None:
            return value
        wanted: Any = Integral if self.whole else Real
        if isinstance(value, bool) or not isinstance(value, wanted):
            raise _MismatchError(value, self.expected)
        try:
            number: Any = int(value) if self.whole else float(value)
        except (OverflowError, ValueError) as error:
            raise _MismatchError(value, self.expected) from error
        if not self.whole and not math.isfinite(number):
            raise _MismatchError(value, self.expected)
        if self.bounds is not None and not self.bounds.holds(number):
            raise _MismatchError(value, self.expected)
        return number if self.whole or hasattr(value, "dtype") else value  # fractions stay exact


class _Truth(Kind):
    """True or False, of Python or numpy."""

    expected = "True or False"

    def take(self, value: Any) -> Any:
        if isinstance(value, bool):
            return value
        if type(value).__name__ in ("bool", "bool_") and hasattr(value, "dtype"):  # numpy's
            return bool(value)
        raise _MismatchError(value, self.expected)


class _Location(Kind):
    """What has a path; a text is another kind."""

    expected = "a path"

    def take(self, value: Any) -> Any:
        if isinstance(value, Path):
            return value
        if isinstance(value, os.PathLike):
            text = os.fspath(value)
            if isinstance(text, str):
                return Path(text)
        raise _MismatchError(value, self.expected)


@dataclass(frozen=True, slots=True)
class _Passing(Kind):
    """What passes a test; it is taken as it is."""

    expected: str
    passes: Callable[[Any], bool]

    def take(self, value: Any) -> Any:
        if not self.passes(value):
            raise _MismatchError(value, self.expected)
        return value


_STREAM = _Passing(
    "an open file", lambda x: any(callable(getattr(x, name, None)) for name in ("read", "write"))
)
_FUNCTION = _Passing("a function", callable)
_CLASSES: Mapping[Any, str] = {str: "a text", bytes: "bytes", type(None): "None"}


def _instance(cls: Any) -> Kind:
    name = _CLASSES.get(cls, "") or f"{_article(cls.__name__)} {cls.__name__}"
    return _Passing(name, lambda value: isinstance(value, cls))


def _one_of(values: tuple[Any, ...]) -> Kind:
    said = f"one of {', '.join(map(repr, values))}"
    return _Passing(
        said, lambda value: any(type(value) is type(one) and value == one for one in values)
    )


@dataclass(frozen=True, slots=True)
class _Items(Kind):
    """A list, tuple or array of something."""

    item: Kind

    @property
    def expected(self) -> str:  # type: ignore[override]
        if self.item is _ANYTHING:
            return "a list or tuple"
        return f"a list or tuple, each item {self.item.expected}"

    def take(self, value: Any) -> Any:
        is_list = isinstance(value, Sequence) or (
            hasattr(value, "__len__") and hasattr(value, "__getitem__") and hasattr(value, "dtype")
        )
        if not is_list or isinstance(value, str | bytes | bytearray | memoryview):
            raise _MismatchError(value, self.expected)
        if getattr(value, "ndim", 1) == 0:
            raise _MismatchError(value, self.expected)
        if self.item is _ANYTHING:
            return value
        return _same_or(value, [_within(self.item, item, f"[{n}]") for n, item in enumerate(value)])


@dataclass(frozen=True, slots=True)
class _Pairs(Kind):
    """A mapping."""

    key: Kind
    value: Kind

    @property
    def expected(self) -> str:  # type: ignore[override]
        if self.key is self.value is _ANYTHING:
            return "a dictionary"
        return f"a dictionary from {self.key.expected} to {self.value.expected}"

    def take(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _MismatchError(value, self.expected)
        if self.key is self.value is _ANYTHING:
            return value
        changed: dict[Any, Any] = {}
        for key, item in value.items():
            place = f"[{shown(key)}]"
            changed[_within(self.key, key, place)] = _within(self.value, item, place)
        if all(changed.get(key, self) is item for key, item in value.items()):
            return value
        return changed


@dataclass(frozen=True, slots=True)
class _AnyOf(Kind):
    """One of several kinds; the first that takes a value does."""

    kinds: tuple[Kind, ...]

    @property
    def expected(self) -> str:  # type: ignore[override]
        return " or ".join(dict.fromkeys(kind.expected for kind in self.kinds))

    def take(self, value: Any) -> Any:
        deepest: _MismatchError | None = None
        for kind in self.kinds:
            try:
                return kind.take(value)
            except _MismatchError as error:
                if error.place and deepest is None:
                    deepest = error
        raise deepest or _MismatchError(value, self.expected)


def _within(kind: Kind, value: Any, place: str) -> Any:
    if kind is _ANYTHING:
        return value
    try:
        return kind.take(value)
    except _MismatchError as error:
        error.place = place + error.place
        raise


def _same_or(value: Any, items: list[Any]) -> Any:
    """Return a list as it was given, where taking its items changed none."""
    if all(a is b for a, b in zip(value, items, strict=True)):
        return value
    return tuple(items) if isinstance(value, tuple) else items


def _article(word: str) -> str:
    return "an" if word[:1] in "AEIOU" else "a"


def kind_of(annotation: Any, bounds: Between | None = None) -> Kind:
    """Return what an annotation takes; annotations that say nothing here take everything."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kind_of(
            inner[0],
            next((argument for argument in inner[1:] if isinstance(argument, Between)), None),
        )
    if origin in (Union, types.UnionType):
        return _any_of([kind_of(argument) for argument in inner])
    if origin is Literal:
        return _one_of(inner)
    if annotation is int or annotation is float:
        return _Number(annotation is int, bounds)
    if annotation is bool:
        return _Truth()
    if annotation is None or annotation is type(None):
        return _instance(type(None))
    plain = origin or annotation
    if plain in (Path, os.PathLike):
        return _Location()
    if plain in (IO, TextIO):
        return _STREAM
    if plain is Callable:
        return _FUNCTION
    if not isinstance(plain, type) or plain in (object, Any):
        return _ANYTHING
    is_abstract = plain.__module__ == _ABSTRACT
    if plain in (tuple, list) or (is_abstract and issubclass(plain, Sequence)):
        return _Items(kind_of(inner[0]) if inner else _ANYTHING)
    if plain is dict or (is_abstract and issubclass(plain, Mapping)):
        return _Pairs(*map(kind_of, inner)) if inner else _Pairs(_ANYTHING, _ANYTHING)
    if is_abstract and plain.__name__ == "Iterable":
        return _instance(plain)
    if is_abstract or getattr(plain, "_is_protocol", False):
        return _ANYTHING
    return _instance(plain)


_ABSTRACT = "collections.abc"


def _any_of(kinds: list[Kind]) -> Kind:
    return _ANYTHING if _ANYTHING in kinds else _AnyOf(tuple(kinds))


def shown(value: object) -> str:
    """Return a stranger's value quoted, without control characters and not too long."""
    if isinstance(value, str):
        short = value[:_LONGEST_SHOWN]
        return repr(short if short == value else f"{short}…")
    if value is None or isinstance(value, bool | float):
        return repr(value)
    if isinstance(value, int):
        return repr(value) if value.bit_length() <= _MOST_SHOWN_BITS else "a huge number"
    name = type(value).__name__
    return f"{_article(name)} {name}"


def parameter_types(
    function: Callable[..., Any], *, include_extras: bool = False
) -> dict[str, Any]:
    """Return the annotations of a function's parameters, evaluated.

    Those of its result and of other keywords are left alone: the types may be imported only where
    a result is made, or by type checkers.
    """
    code = inspect.unwrap(function).__code__
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    taken = {
        name: annotation for name, annotation in function.__annotations__.items() if name in named
    }
    return get_type_hints(
        types.SimpleNamespace(__annotations__=taken),
        inspect.unwrap(function).__globals__,
        include_extras=include_extras,
    )


class _Parameters:
    """What a function takes, read off its annotations when it is first called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        hints = parameter_types(function, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
        self.name = function.__qualname__.removesuffix(".__init__")
        self.is_method = any(parameter.name == "self" for parameter in parameters)
        by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self.positional = [parameter.name for parameter in parameters if parameter.kind in by_place]
        self.required = [
            parameter.name
            for parameter in parameters
            if parameter.default is parameter.empty
            and parameter.kind in (*by_place, inspect.Parameter.KEYWORD_ONLY)
        ]
        self.rest = any(
            parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters
        )
        self.others = any(
            parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters
        )
        self.kinds = {
            parameter.name: kind_of(hints.get(parameter.name, Any))
            for parameter in parameters
            if parameter.kind
            not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        }

    def taken(self, given: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        """Return the arguments by place as the function gets them; those by name in `named`."""
        places = self.positional
        taken = [self._take(name, value) for name, value in zip(places, given, strict=False)]
        if len(given) > len(places):
            if not self.rest:
                most, count = len(places) - self.is_method, len(given) - self.is_method
                raise ArgumentError(
                    self.name,
                    f"argument {most}",
                    f"{most} arguments by place at most",
                    f"{count} arguments",
                    f"{self.name}() takes {most} arguments by place, {count} were given",
                )
            taken += given[len(places) :]
        for name, value in named.items():
            if name in self.kinds:
                if name in places[: len(given)]:
                    twice = f"{self.name}() is given {name} by place and by name"
                    raise ArgumentError(self.name, name, "one of the two", "both", twice)
                named[name] = self._take(name, value)
            elif not self.others:
                known = ", ".join(kind for kind in self.kinds if kind != "self") or "nothing"
                unknown = f"{self.name}() takes no argument {shown(name)}"
                raise ArgumentError(self.name, name, known, shown(value), unknown)
        for name in self.required:
            if name not in places[: len(given)] and name not in named:
                missing = f"{self.name}() is not given its argument {name}"
                raise ArgumentError(self.name, name, self.kinds[name].expected, "none", missing)
        return taken

    def _take(self, name: str, value: Any) -> Any:
        return _converted(self.name, name, self.kinds[name], value)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Check a function's arguments by its annotations; raises ArgumentError E3180."""
    read: list[_Parameters] = []

    @wraps(function)
    def called(*given: P.args, **named: P.kwargs) -> R:
        if not read:
            read.append(_Parameters(function))
        return function(*read[0].taken(given, named), **named)

    return called


def checked_record(cls: type[T]) -> type[T]:
    """Check what a dataclass is made of by the annotations of its fields."""
    cls.__init__ = checked(cls.__init__)  # type: ignore[method-assign]
    return cls


def _converted(function: str, name: str, kind: Kind, value: Any) -> Any:
    """Return an argument as a function gets it; raises ArgumentError."""
    if kind is _ANYTHING:
        return value
    try:
        return kind.take(value)
    except _MismatchError as error:
        argument = name + error.place
        raise ArgumentError(
            function, argument, error.expected, shown(error.value)
        ) from error.__cause__

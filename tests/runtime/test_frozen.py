"""Frozen records made the short way do what the standard library's do."""

# The decorator under test is an argument, which mypy does not follow.
# mypy: disable-error-code="call-arg"

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import pytest

from hloipu_runtime import frozen
from hloipu_runtime.frozen import dataclass


def described(decorator: Any) -> list[Any]:
    """Return what can be seen of records of several classes that a decorator has made."""

    @decorator(frozen=True)
    class Plain:
        """A record."""

        kind: ClassVar[str] = "plain"
        first: int
        second: str = "s"
        third: list[int] = field(default_factory=list)
        hidden: int = field(default=4, repr=False, compare=False)

        @cached_property
        def twice(self) -> int:
            """Twice the first."""
            return 2 * self.first

    @decorator(frozen=True, slots=True)
    class Slotted:
        """A record with slots, checked and completed when it is made."""

        first: int
        second: tuple[int, ...] = ()
        count: int = field(init=False, repr=False)

        def __post_init__(self) -> None:
            if self.first < 0:
                raise ValueError("negative")
            object.__setattr__(self, "count", len(self.second))

    @decorator(frozen=True, slots=True)
    class Derived(Slotted):
        """A record with more fields than its base."""

        third: float = 0.5

    @decorator(frozen=True, eq=False)
    class Unequal:
        """A record that equals itself alone."""

        one: int

    @decorator(frozen=True)
    class Own:
        """A record with methods of its own."""

        one: int

        def __repr__(self) -> str:
            return "own"

        def __hash__(self) -> int:
            return 5

    @decorator(frozen=True, slots=True)
    class Empty:
        """A record of nothing."""

    made: list[Any] = [
        Plain(1), Plain(1, third=[2]), Slotted(1, (2, 3)), Slotted(second=(), first=2),
        Derived(1), Derived(1, (2,), 3.0), Unequal(1), Own(1), Empty(),
    ]  # fmt: skip
    seen: list[Any] = [repr(x) for x in made]
    seen += [[a == b for b in made] for a in made]
    seen += [x == copy.copy(x) and x == copy.deepcopy(x) for x in made]
    seen += [hash(x) for x in made if not isinstance(x, Plain | Unequal)]
    seen += [[(f.name, f.type, f.init, f.repr, f.compare) for f in fields(x)] for x in made]
    seen += [(is_dataclass(x), type(x).__match_args__, hasattr(x, "__dict__")) for x in made]
    seen += [getattr(type(x), "__slots__", None) for x in made]
    seen += [repr(replace(made[0], first=5)), replace(made[2], second=(1,)).count, made[0].twice]
    faults: list[Callable[[], Any]] = [
        lambda: Plain(),
        lambda: Plain(1, 2, 3, 4, 5),
        lambda: Slotted(1, other=2),
        lambda: Slotted(-1),
        lambda: setattr(made[0], "first", 2),
        lambda: setattr(made[0], "other", 2),
        lambda: setattr(made[4], "first", 2),
        lambda: delattr(made[0], "first"),
        lambda: hash(made[0]),
    ]
    for fault in faults:
        with pytest.raises((TypeError, ValueError, FrozenInstanceError)) as error:
            fault()
        seen.append((error.type, str(error.value)))
    return seen


def test_records_are_those_of_the_standard_library() -> None:
    for ours, theirs in zip(described(dataclass), described(dataclasses.dataclass), strict=True):
        assert ours == theirs


@dataclass(frozen=True, slots=True)
class _Kept:
    """A record that is sent to other processes."""

    one: int
    two: str = "t"


def test_records_with_slots_are_pickled() -> None:
    assert pickle.loads(pickle.dumps(_Kept(3))) == _Kept(3)  # noqa: S301 - our own bytes


def test_init_is_compiled_once_and_by_the_first_record() -> None:
    @dataclass(frozen=True)
    class Late:
        """A record."""

        one: int

    stub = vars(Late)["__init__"]
    assert Late(1) == Late(one=1)
    assert vars(Late)["__init__"] is not stub
    assert frozen.dataclass is not dataclasses.dataclass


def test_class_variables_of_a_plain_base_are_no_fields() -> None:
    @dataclasses.dataclass(frozen=True)
    class Base:
        number: int
        passes: ClassVar[int] = 1

    @dataclass(frozen=True)
    class Derived(Base):
        passes: ClassVar[int] = 3

    assert Derived(7).passes == 3
    assert [one.name for one in fields(Derived(7))] == ["number"]

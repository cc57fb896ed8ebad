"""The table of passes: what it says of each, and what it refuses."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pytest

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes import Pass, passes, register
from hloipu_compiler.passes.framework.registry import added_passes_forgotten, pass_named
from hloipu_compiler.plan.plan import Plan
from hloipu_runtime.errors import UsageError


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    with added_passes_forgotten():
        yield


@pytest.mark.parametrize("one", passes(), ids=lambda one: one.name)
def test_every_pass_says_what_it_does_in_one_sentence(one: type[Pass]) -> None:
    text = one.help_text()
    assert text.endswith(".")
    assert text.count(". ") == 0


class Idle(Pass):
    """Does nothing."""

    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        return module, plan


@dataclass(frozen=True)
class Named(Idle):
    """Does nothing, under a name."""

    name: ClassVar[str] = "fold-constants"


@dataclass(frozen=True)
class Camel(Idle):
    """Does nothing."""

    name: ClassVar[str] = "FoldConstants"


@dataclass(frozen=True)
class Silent(Idle):
    name: ClassVar[str] = "silent"


@dataclass
class Changeable(Idle):
    """Does nothing."""

    name: ClassVar[str] = "changeable"


@dataclass(frozen=True)
class Listing(Idle):
    """Does nothing."""

    name: ClassVar[str] = "listing"
    numbers: tuple[int, ...] = ()


class Plain(Idle):
    """Does nothing."""

    name: ClassVar[str] = "plain"


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (Named, "there is a pass 'fold-constants' already"),
        (Camel, "its name is not in kebab-case"),
        (Idle, "its name is not in kebab-case"),
        (Silent, "it has no docstring"),
        (Changeable, "it is not a frozen dataclass"),
        (Plain, "it is not a frozen dataclass"),
        (Listing, "option numbers is tuple"),
    ],
)
def test_what_the_table_refuses(one: type[Pass], why: str) -> None:
    with pytest.raises(UsageError, match=why) as error:
        register(one)
    assert error.value.code == "E3130"


def test_unknown_names_bring_the_nearest() -> None:
    with pytest.raises(UsageError, match="no pass 'fold-constant'") as error:
        pass_named("fold-constant")
    assert (error.value.code, error.value.hint) == ("E3131", "did you mean fold-constants?")

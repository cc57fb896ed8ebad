"""What a pass is: a frozen dataclass whose fields are its options."""

from abc import ABC, abstractmethod
from typing import ClassVar

from hloipu_compiler.ir.graph import Module
from hloipu_compiler.plan.plan import Plan

Facts = frozenset[str]

FLAT_CALLS = "flat-calls"
"""No call and no fusion anywhere; loops and branches own the computations that they run."""
NO_BITCASTS = "no-bitcasts"
"""No value depends on a layout."""
NO_BARRIERS = "no-barriers"
"""No opt-barrier, domain or add-dependency."""
NO_DEAD_CODE = "no-dead-code"
"""Every instruction and computation serves the result or an effect."""
TRIP_COUNTS = "trip-counts"
"""The plan's trip counts are those of the module as it stands."""

NO_FACTS: Facts = frozenset()


class Pass(ABC):
    """One step of a pipeline; subclasses are frozen dataclasses with a docstring of one sentence.

    `run` returns the very same module where it finds nothing to do: that is how a repeated group
    of passes knows when to stop.
    """

    __slots__ = ()

    name: ClassVar[str]
    """In kebab-case."""
    requires: ClassVar[Facts] = NO_FACTS
    """Facts that must hold before; checked when a pipeline is built."""
    establishes: ClassVar[Facts] = NO_FACTS
    """Facts that hold afterwards."""
    breaks: ClassVar[Facts] = NO_FACTS
    """Facts that need not hold any more afterwards."""

    @abstractmethod
    def run(self, module: Module, plan: Plan) -> tuple[Module, Plan]:
        """Return the module and the plan after this step."""

    @classmethod
    def help_text(cls) -> str:
        """Return the docstring on one line."""
        return " ".join((cls.__doc__ or "").split())

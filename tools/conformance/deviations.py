"""The listed deviations: where our result differs from XLA:CPU's on purpose, each with a proof.

`deviations.toml` is the one table. An entry names opcodes and element types, and the explainer that
must hold for every single element that is over budget.
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hloipu_compiler.interpret.budgets import Budget
from hloipu_compiler.ir.graph import Module
from hloipu_runtime.kernels.core.blocks import Array
from tools.conformance.case import Case

TABLE = Path(__file__).with_name("deviations.toml")


@dataclass(frozen=True, slots=True)
class Deviation:
    """A class of elements on which XLA:CPU is wrong, undefined, or less exact than we are."""

    name: str
    opcodes: frozenset[str]
    """Empty: any opcode."""
    element_types: frozenset[str]
    """The case's; empty: any."""
    explained_by: str
    """Name of a function in `explainers.EXPLAINERS`."""
    reason: str

    def applies(self, case: Case) -> bool:
        """Whether the entry is about a case's opcode and type at all."""
        return (not self.opcodes or case.opcode in self.opcodes) and (
            not self.element_types or case.element_type in self.element_types
        )


@dataclass(frozen=True)
class Evidence:
    """What an explainer may look at: one output of one participant."""

    case: Case
    module: Module
    inputs: Sequence[Array]
    leaf: int
    ours: Array
    theirs: Array
    budget: Budget
    magnitudes: Array | None


Explainer = Callable[[Evidence], Array]
"""Returns which elements of the output it explains."""


def read(path: Path = TABLE) -> list[Deviation]:
    """Read the table."""
    return [
        Deviation(
            entry["name"], frozenset(entry.get("opcodes", ())),
            frozenset(entry.get("element_types", ())), entry["explained_by"], entry["reason"],
        )
        for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("deviation", [])
    ]  # fmt: skip


def explained(evidence: Evidence, bad: Array, table: Sequence[Deviation]) -> tuple[set[str], Array]:
    """Return the entries that explain elements over budget, and the elements that none explains."""
    from tools.conformance.explainers import EXPLAINERS

    names: set[str] = set()
    left = bad.copy()
    with np.errstate(all="ignore"):
        for entry in table:
            if left.any() and entry.applies(evidence.case):
                is_explained = (
                    np.broadcast_to(EXPLAINERS[entry.explained_by](evidence), left.shape) & left
                )
                if is_explained.any():
                    names.add(entry.name)
                    left &= ~is_explained
    return names, left

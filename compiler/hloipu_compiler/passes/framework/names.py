"""Names that nothing else has, in constant time each."""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Generic, TypeVar

from hloipu_compiler.analysis.call_graph import with_reached
from hloipu_compiler.ir.graph import Computation, Module

V = TypeVar("V", bound=tuple[Any, ...])


class Names:
    """The names in use in one computation or module."""

    __slots__ = ("_next", "_used")

    def __init__(self, used: Iterable[str]) -> None:
        self._used = set(used)
        self._next: dict[str, int] = {}

    def fresh(self, stem: str) -> str:
        """Return `stem`, or `stem.1`, `stem.2`… where that is taken, and take it."""
        used = self._used
        if stem not in used:
            used.add(stem)
            return stem
        number = self._next.get(stem, 0)
        while True:
            number += 1
            name = f"{stem}.{number}"
            if name not in used:
                break
        self._next[stem] = number
        used.add(name)
        return name


class Variants(Generic[V]):
    """Computations as they are needed, each once for each variant: its name, and what is said."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._names = Names(c.name for c in module.computations)
        self._known: dict[V, str] = {}
        self._given: set[str] = set()
        self._waiting: list[V] = []

    def named(self, variant: V) -> str:
        """Return the name of a computation's variant; the first one takes the old name."""
        if variant not in self._known:
            name = variant[0]
            self._known[variant] = self._names.fresh(name) if name in self._given else name
            self._given.add(name)
            self._waiting.append(variant)
        return self._known[variant]

    @abstractmethod
    def written(self, variant: V) -> Computation:
        """Return one computation, which calls variants of others."""

    def from_entry(self, variant: V) -> Module:
        """Return the module whose entry is a variant."""
        entry = self.named(variant)
        computation_by_name = {c.name: c for c in self.module.computations}
        while self._waiting:
            variant = self._waiting.pop()
            name = self._known[variant]
            computation_by_name[name] = replace(self.written(variant), name=name)
        return with_reached(self.module, computation_by_name.values(), entry)

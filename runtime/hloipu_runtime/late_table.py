"""Tables whose entries are imported on first use.

    RULES: LateTable[Rule] = LateTable("hloipu_compiler.inference", {"dots": "dot ragged-dot"})

    @RULES.register("dot")           # in hloipu_compiler/inference/dots.py
    def dot(site: Site) -> Shape: ...

Importing every family of rules took a third of the time of a small compile, which needs a few.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import TypeVar

T = TypeVar("T")


class LateTable(Mapping[str, T]):
    """Entries by name; asking for one imports the module that registers it."""

    def __init__(self, package: str, homes: Mapping[str, str | Iterable[str]]) -> None:
        """Take the names that each module of `package` registers, as words of a text or a set.

        ValueError where two modules register the same name.
        """
        self.package = package
        self.loaded: dict[str, T] = {}
        """The entries of the modules that were imported."""
        self._home: dict[str, str] = {}
        for module, words in homes.items():
            for name in words.split() if isinstance(words, str) else sorted(words):
                if name in self._home:
                    raise ValueError(f"{name} stands in {self._home[name]} and in {module}")
                self._home[name] = module

    def __getitem__(self, name: str) -> T:
        entry = self.loaded.get(name)
        if entry is None:
            import_module(f"{self.package}.{self._home[name]}")
            entry = self.loaded[name]
        return entry

    def __contains__(self, name: object) -> bool:
        return name in self._home

    def __iter__(self) -> Iterator[str]:
        return iter(self._home)

    def __len__(self) -> int:
        return len(self._home)

    def home(self, name: str) -> str:
        """Return the module of `package` that registers a name; KeyError for no name of it."""
        return self._home[name]

    def register(self, *names: str) -> Callable[[T], T]:
        """Enter what is decorated under names; a second entry of a name is a ValueError."""

        def enter(entry: T) -> T:
            self.add(dict.fromkeys(names, entry))
            return entry

        return enter

    def add(self, entries: Mapping[str, T]) -> None:
        """Enter the entries of a module; ValueError for a name that has one, or is not listed."""
        for name, entry in entries.items():
            if name in self.loaded or name not in self._home:
                why = "has two entries" if name in self.loaded else "is not listed"
                raise ValueError(f"{self.package}: {name} {why}")
            self.loaded[name] = entry

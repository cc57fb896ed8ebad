"""Results of a JAX function by the keys and fields that lead to them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hloipu_runtime.errors import UsageError

try:
    import jax
except ImportError as _error:
    raise UsageError(
        "E3174", "JAX is not installed", hint="pip install 'hloipu[jax]'; HLO text needs no JAX"
    ) from _error

Words = tuple[str, ...]
_NOT_IN_NAMES = frozenset(":=,")

Numbers = int | range | slice


def selected_numbers(
    selectors: Numbers | Sequence[Numbers], count: int, noun: str = "argument"
) -> tuple[int, ...]:
    """Return numbers of arguments or results, below 0 from the last; UsageError E2063: no such."""
    numbers: list[int] = []
    for part in (selectors,) if isinstance(selectors, int | range | slice) else selectors:
        if isinstance(part, int):
            numbers.append(part)
        else:
            numbers += part if isinstance(part, range) else range(*part.indices(count))
    for number in numbers:
        if not -count <= number < count:
            raise UsageError(
                "E2063",
                f"there is no {noun} {number}",
                hint=f"the function has {count} {noun}s, counted from 0",
            )
    return tuple(number % count for number in numbers)


@dataclass(frozen=True)
class ResultPaths:
    """For each result, arrays counted, the words of its path."""

    words: tuple[Words, ...]
    has_numbers: bool
    """Whether the function returns a tuple or list: the first word is a number then."""

    @staticmethod
    def of(out_info: Any) -> "ResultPaths":
        """Return those of what a function returns."""
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(out_info)[0]]
        words = tuple(tuple(map(_word, path)) for path in paths)
        return ResultPaths(words, type(out_info) in (tuple, list))

    def named(self, results: Sequence[int]) -> dict[str, int]:
        """Return results by name: the last key where these differ, else as much as is needed.

        One that has no key is the `loss` where it is the only one, else `result.N`.
        """
        forms: tuple[Callable[[Words], Words], ...] = (
            lambda words: words[-1:],
            lambda words: words,
        )
        for form in forms:
            names = ["/".join(form(self._keys(n))) for n in results]
            known = [name for name in names if name]
            if len(known) == len(set(known)):
                break
        else:
            names = ["/".join(self.words[n]) for n in results]
        plain = [
            f"result.{n}" if not name or _NOT_IN_NAMES.intersection(name) else name
            for name, n in zip(names, results, strict=True)
        ]
        if plain == [f"result.{n}" for n in results] and len(plain) == 1:
            plain = ["loss"]
        return dict(zip(plain, results, strict=True))

    def numbers(self, selectors: Any) -> tuple[int, ...]:
        """Return the results that numbers or paths name; UsageError E2063 for what is not there."""
        is_single = isinstance(selectors, int | str | range | slice)
        numbers: dict[int, None] = {}
        for selector in (selectors,) if is_single else selectors:
            numbers |= dict.fromkeys(self._below(selector))
        return tuple(numbers)

    def _below(self, selector: Any) -> list[int]:
        if isinstance(selector, str):
            path = tuple(selector.strip("/").split("/"))
            for forms in (tuple(map(self._keys, range(len(self.words)))), self.words):
                below = [n for n, words in enumerate(forms) if words[: len(path)] == path]
                if below:
                    return below
        else:
            count = len({words[0] for words in self.words}) if self.has_numbers else 1
            wanted = set(selected_numbers((selector,), count, "result"))
            return [
                n
                for n, words in enumerate(self.words)
                if (int(words[0]) if self.has_numbers else 0) in wanted
            ]
        known = ", ".join("/".join(words) for words in self.words[:8])
        raise UsageError("E2063", f"there is no result {selector!r}", hint=f"there are {known}")

    def _keys(self, number: int) -> Words:
        """Return the words of a path but for the place in the tuple that is returned."""
        return self.words[number][1:] if self.has_numbers else self.words[number]


def _word(key: Any) -> str:
    """Return what a path's key says: of a dictionary, a field, or a place."""
    for name in ("key", "name", "idx"):
        if hasattr(key, name):
            return str(getattr(key, name))
    return str(key)

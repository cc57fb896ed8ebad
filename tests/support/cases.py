"""Many small cases in one test: by themselves each would cost pytest more than it computes."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

SHOWN = 10
"""Of cases that fail, as many are named."""


def each(
    names: str | Sequence[str], values: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test for all values of some of its arguments, which are given as to `parametrize`.

    All cases run. Where some fail, the first one's error is raised, with a note that names them.
    The cases share what fixtures the test takes.
    """
    keys = [x.strip() for x in names.split(",")] if isinstance(names, str) else list(names)
    cases = [dict(zip(keys, x if len(keys) > 1 else (x,), strict=True)) for x in values]

    def of(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @wraps(test)
        def all_cases(**others: Any) -> None:
            failed: list[tuple[dict[str, Any], Exception]] = []
            for case in cases:
                try:
                    test(**case, **others)
                except Exception as error:  # any is a failure, and the next case is to run
                    failed.append((case, error))
            if failed:
                shown = "".join(f"\n  {case}" for case, _ in failed[:SHOWN])
                first = failed[0][1]
                first.add_note(f"{len(failed)} of {len(cases)} cases fail, the first ones:{shown}")
                raise first

        left = [x for name, x in signature.parameters.items() if name not in keys]
        all_cases.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return all_cases

    return of

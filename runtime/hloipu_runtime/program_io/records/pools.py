"""Pools: repeated records are written once and referred to by number."""

from typing import Any

from hloipu_runtime.errors import ArtefactError, LimitError

Json = Any
"""JSON data; what a file holds is checked piece by piece."""

MOST_BLOCKS = 64
"""Blocks of steps within each other: readers recurse, and Python's stack ends at 1,000 calls."""


class Writing:
    """Numbers of the records written so far, by pool."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Json]] = {}
        self._by_identity: dict[int, tuple[object, int]] = {}
        self._by_text: dict[tuple[str, str], int] = {}
        self.blocks = 0

    def seen(self, value: object) -> int | None:
        """Return the number of a record that was written already, the very same object."""
        entry = self._by_identity.get(id(value))
        return None if entry is None else entry[1]

    def number(self, pool: str, value: object, row: Json) -> int:
        """Return the number of a record, under which its pool holds what it was written as.

        Texts are compared and not records: to Python, True is 1.
        """
        rows = self.rows.setdefault(pool, [])
        number = self._by_text.setdefault((pool, repr(row)), len(rows))
        if number == len(rows):
            rows.append(row)
        self._by_identity[id(value)] = (value, number)  # kept alive, so that no other has its id
        return number

    def enter(self) -> None:
        """Enter an inner block; LimitError E5025 where that is too deep."""
        self.blocks += 1
        if self.blocks > MOST_BLOCKS:
            raise LimitError(
                "E5025",
                f"blocks of steps within each other, more than {MOST_BLOCKS} deep",
                limit="file_blocks",
                allowed=MOST_BLOCKS,
                found=self.blocks,
                hint="such a program can be run, but not written to a file",
            )


class Reading:
    """The records of a file that were read so far, by pool, and where the reader is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.place = "the program"
        self.pools: dict[str, list[Any]] = {}
        self.blocks = 0

    def refused(self, expected: str, found: object) -> ArtefactError:
        """Return the error for data that is not what stands in its place."""
        shown = repr(found) if isinstance(found, int | float | str | None) else type(found).__name__
        return ArtefactError(
            "E4010",
            f"{self.place}: expected is {expected}, found {shown[:80]}",
            name=self.name,
            hint="have this hloipu write it again",
        )

    def pooled(self, pool: str, number: object) -> Any:
        """Return a record by its number."""
        rows = self.pools.get(pool, ())
        if type(number) is not int or not 0 <= number < len(rows):
            raise self.refused(f"a number below {len(rows)} of {pool}", number)
        return rows[number]

    def enter(self) -> None:
        """Enter an inner block; ArtefactError E4010 where that is too deep."""
        self.blocks += 1
        if self.blocks > MOST_BLOCKS:
            raise self.refused(f"at most {MOST_BLOCKS} blocks within each other", self.blocks)

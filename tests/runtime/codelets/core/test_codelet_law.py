"""The referee of codelets catches codelets that break the law."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from hloipu_runtime.codelets.core.codelet import ALL, Codelet, Index, Indexing
from hloipu_runtime.codelets.core.tensors import Block, Tensor
from tests.support.codelet_law import Given, check_every_split

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Counting(Codelet):
    """Adds each element's index; a lawful codelet, of which others spoil one thing each."""

    def indexing(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Indexing:
        """Return one label."""
        return Indexing(results[0].shape, ((Index(0),),), ((Index(0),),))

    def run(self, operands: Sequence[Block], results: Sequence[Block]) -> list[Array]:
        """Add the index."""
        block = operands[0]
        start = np.asarray(block.starts[0])
        return [block.data + start[..., None] + np.arange(block.part[0])]


class ForgetsStarts(Counting):
    """Counts from 0 on every tile."""

    def run(self, operands: Sequence[Block], results: Sequence[Block]) -> list[Array]:
        """Add the index within the part."""
        return [operands[0].data + np.arange(operands[0].part[0])]


class Writes(Counting):
    """Writes to its operand."""

    def run(self, operands: Sequence[Block], results: Sequence[Block]) -> list[Array]:
        """Change the operand first."""
        operands[0].data[...] += 1
        return super().run(operands, results)


class NeedsMore(Counting):
    """Looks at the whole operand and says that it needs its part alone."""

    def run(self, operands: Sequence[Block], results: Sequence[Block]) -> list[Array]:
        """Add the sum of what it has."""
        (array,) = super().run(operands, results)
        return [array + operands[0].data.sum(axis=-1, keepdims=True)]


class NotAPart(Counting):
    """Returns the parts of all tiles as one."""

    def run(self, operands: Sequence[Block], results: Sequence[Block]) -> list[Array]:
        """Lose the grid."""
        return [super().run(operands, results)[0].reshape(-1)]


class LeavesOut(Counting):
    """Says that the result does not follow the label, and makes its part only."""

    def indexing(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Indexing:
        """Claim a result that is whole on every tile."""
        return Indexing(results[0].shape, ((Index(0),),), ((ALL,),))


class NamesTwice(Counting):
    """Has a label that is out of range."""

    def indexing(self, operands: Sequence[Tensor], results: Sequence[Tensor]) -> Indexing:
        """Name a label that does not exist."""
        return Indexing(results[0].shape, ((Index(1),),), ((Index(0),),))


class OverwritesBadly(Counting):
    """Writes over its operand before it has read all of it."""

    def may_overwrite(self, operand: int) -> bool:
        """Say that it can."""
        return True

    def run(self, operands: Sequence[Block], results: Sequence[Block]) -> list[Array]:
        """Write first, read afterwards."""
        (array,) = super().run(operands, results)
        out = results[0].array
        if out is None:
            return [array]
        out[...] = 0
        out += super().run(operands, results)[0]
        return [out]


OPERAND = Given("s64", np.array([5, 3, 8, 1, 9, 2, 7]))


def test_a_lawful_codelet_passes() -> None:
    (whole,) = check_every_split(Counting(), [OPERAND], [Tensor("s64", (7,))])
    np.testing.assert_array_equal(whole, OPERAND.array + np.arange(7))


@pytest.mark.parametrize(
    "kind",
    [ForgetsStarts, Writes, NeedsMore, NotAPart, LeavesOut, NamesTwice, OverwritesBadly],
)
def test_an_unlawful_codelet_is_caught(kind: type[Codelet]) -> None:
    with pytest.raises((AssertionError, ValueError)):
        check_every_split(kind(), [OPERAND], [Tensor("s64", (7,))])

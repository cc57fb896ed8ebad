"""Compute many values by compiled kernels and by numpy, and compare the bits.

    python -m tools.prove_kernels [--pairs N] [--seed N] [--types NAMES]

Every op that kernels know, of every element type: ops of one operand on all values of types of up
to 16 bits, the others on random pairs (any bits, moderate sizes, zeros, infinities, NaN), with
subnormals flushed and without; and as many pairs in rows that are combined into rows of a table.
Then rows of f32, bf16 and f16 with reductions along them, of random sizes. One NaN is like another.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from unittest.mock import patch

import numpy as np

from hloipu_runtime.codelets.core.expression_form import Expression, Node
from hloipu_runtime.codelets.ops import row_native
from hloipu_runtime.codelets.ops.row_region import FEWEST_ELEMENTS, RowRegion
from hloipu_runtime.element_types import ELEMENT_TYPES
from hloipu_runtime.kernels.computing import computing
from hloipu_runtime.kernels.native.settings import Settings, is_there, native_kernels
from hloipu_runtime.kernels.native.targets import Targets
from tests.support.native_cases import (
    TYPES,
    Array,
    all_values,
    by_kernels,
    by_numpy,
    combined_rows,
    differences,
    every_op,
    monoids_of,
    some_values,
    wrong_nodes,
)
from tests.support.row_cases import PATTERNS, blocks_of, values_of

CHUNK = 1 << 19


def _operands(expression: Expression, pairs: int, seed: int) -> Iterator[list[Array]]:
    """Yield operands: first all values of a short type, each with some others, then random ones."""
    generator = np.random.default_rng(seed)
    types = expression.operand_types
    if ELEMENT_TYPES[types[0]].bits <= 16:
        every = all_values(types[0])
        rest = [some_values(x, every.size, generator) for x in types[1:]]
        yield [every, *rest]
    for _ in range(-(-pairs // CHUNK)):
        yield [some_values(x, CHUNK, generator) for x in types]


def _combined(element_type: str, pairs: int, seed: int) -> int:
    """Return how many elements of tables differ, rows combined by every monoid."""
    generator = np.random.default_rng(seed)
    wrong = 0
    for monoid in monoids_of(element_type):
        for width in (1, 3, 64):
            for _ in range(-(-pairs // CHUNK)):
                rows = some_values(element_type, CHUNK // width * width, generator)
                table = some_values(element_type, 5000 * width, generator)
                rows, table = rows.reshape(-1, width), table.reshape(-1, width)
                numbers = generator.integers(0, len(table), len(rows))
                targets = Targets(numbers, len(table), numbers.size)
                for setting in (nullcontext(), computing()):
                    with setting, np.errstate(all="ignore"):
                        both = combined_rows(table, targets, rows, monoid, element_type)
                    wrong += differences(*both)
    return wrong


def _wrong_rows(region: RowRegion, kind: str, elements: int, seed: int) -> tuple[int, int]:
    """Return how many elements of a region's results were compared, and how many differ."""
    generator = np.random.default_rng(seed)
    compared = wrong = 0
    while compared < elements:
        columns = int(2 ** generator.uniform(5.1, 13))
        sizes = (max(1, FEWEST_ELEMENTS // columns) + int(generator.integers(1, 100)), columns)
        operands, results = blocks_of(region, sizes)
        arrays = [values_of(kind, x.part, generator) for x in operands]
        bound, by_both = region.bound(operands, results), []
        for setting in (Settings(is_on=False), Settings(keeps=False)):
            with computing(), native_kernels(setting):
                by_both.append([np.array(x) for x in bound(arrays, [None] * len(results))])
        wrong += sum(map(differences, *by_both))
        compared += sum(x.size for x in by_both[0])
    return compared, wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute, compare, and say for each type how many values differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10_000_000, help="of each type")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--types", default=",".join(TYPES))
    options = parser.parse_args(arguments)
    if not is_there():
        print("llvmlite is not installed: install hloipu[fast]", file=sys.stderr)
        return 2
    failed = False
    for element_type in options.types.split(","):
        expression = every_op(element_type)
        values, wrong = 0, Counter[Node]()
        for operands in _operands(expression, options.pairs, options.seed):
            for setting in (nullcontext(), computing()):
                with setting, np.errstate(all="ignore"):
                    both = by_numpy(expression, operands), by_kernels(expression, operands)
                wrong.update(wrong_nodes(expression, *both))
                values += operands[0].size
        wrong_rows = _combined(element_type, options.pairs, options.seed)
        ops = len(expression.results)
        print(
            f"{element_type}: {ops} ops of {values} values, {sum(wrong.values())} differ; "
            f"{wrong_rows} of rows combined",
            flush=True,
        )
        for node, count in wrong.items():
            print(f"  {count} of {node}", file=sys.stderr)
        failed |= bool(wrong) or bool(wrong_rows)
    for kind in ("f32", "bf16", "f16"):
        for name, region in PATTERNS.items():
            with patch.multiple(row_native, LOADING_WORK=0, COMPILING_WORK=0):  # at once
                compared, differ = _wrong_rows(region(kind), kind, options.pairs, options.seed)
            print(f"{name} of {kind}: {compared} values, {differ} differ", flush=True)
            failed |= bool(differ)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

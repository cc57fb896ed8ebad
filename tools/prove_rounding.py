"""Round many random f32 values to each narrow float, against ml_dtypes and numpy.

    python -m tools.prove_rounding [--values N] [--seed N] [--types NAMES]

Every way of rounding is compared, bit for bit but for NaNs: any f32 bit patterns, sums, differences
and products of numbers of the grid, with subnormals flushed and without.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import numpy as np

from hloipu_runtime.element_types import GRIDS
from hloipu_runtime.kernels.computing import computing
from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.rounding import round_to
from hloipu_runtime.kernels.core.storage import user_dtype
from hloipu_runtime.kernels.elementwise.binary import binary

CHUNK = 1 << 20
_OPS = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}


def _reference(exact: Array, element_type: str) -> Array:
    wanted = exact.astype(user_dtype(element_type)).astype(np.float32)
    if element_type in GRIDS and not GRIDS[element_type].nan:
        wanted[np.isnan(exact)] = -0.0  # as XLA converts; ml_dtypes gives zeros of both signs
    return np.asarray(wanted)


def _differences(exact: Array, rounded: Array, element_type: str) -> Array:
    """Return the values that were rounded otherwise than by the reference."""
    wanted = _reference(exact, element_type)
    same = rounded.view(np.uint32) == wanted.view(np.uint32)
    return np.asarray(exact[~(same | (np.isnan(rounded) & np.isnan(wanted)))])


def _rounded(
    element_type: str, generator: np.random.Generator
) -> Iterator[tuple[str, Array, Array]]:
    """Yield, for a chunk of random values: the way, exact values, and what they became."""
    bits = generator.integers(0, 1 << 32, CHUNK, np.uint32).view(np.float32)
    yield "any", bits, round_to(bits, element_type)
    # Of moderate sizes, as most blocks have them: what is quicker is for those.
    sizes = np.exp2(generator.uniform(-30, 3, (2, CHUNK))).astype(np.float32)
    signs = generator.choice(np.array([-1, 1], np.float32), (2, CHUNK))
    x, y = round_to(sizes * signs, element_type)
    for name, ufunc in _OPS.items():
        for flushes in (False, True):
            with computing() if flushes else nullcontext():
                exact, result = ufunc(x, y), binary(name, x, y, element_type)
            yield f"{name}{', flushing' if flushes else ''}", exact, result


def main(arguments: Sequence[str] | None = None) -> int:
    """Round, compare, and say for each type how many values differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--values", type=int, default=100_000_000, help="of each type")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--types", default=",".join([*GRIDS, "f8e8m0fnu"]))
    options = parser.parse_args(arguments)
    failed = False
    for element_type in options.types.split(","):
        generator = np.random.default_rng(options.seed)
        rounded, wrong = 0, 0
        with np.errstate(all="ignore"):
            while rounded < options.values:
                for name, exact, result in _rounded(element_type, generator):
                    rounded += exact.size
                    bad = _differences(exact, result, element_type)
                    wrong += bad.size
                    if bad.size:
                        print(f"{element_type}, {name}: {bad[:4]}", file=sys.stderr)
        print(f"{element_type}: {rounded} values, {wrong} differ", flush=True)
        failed |= wrong > 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

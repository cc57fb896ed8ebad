"""Kernels that stand for one of numpy's functions give the bits that it gives."""

from contextlib import nullcontext

import numpy as np
import pytest

from hloipu_runtime.kernels.computing import computing
from hloipu_runtime.kernels.core.storage import storage_dtype
from hloipu_runtime.kernels.native.combining import combine_natively, combining_kernel
from hloipu_runtime.kernels.native.settings import Settings, is_there, native_kernels
from hloipu_runtime.kernels.scatter_rows import combine_rows, combine_window
from tests.support.native_cases import TYPES, Array, differences, some_values

pytestmark = pytest.mark.skipif(not is_there(), reason="llvmlite is not installed")
PLAIN, FAST = Settings(is_on=False), Settings(keeps=False)
AT_ONCE = 1 << 40
"""So much work that compiling pays."""

MONOIDS = ("add", "multiply", "minimum", "maximum", "and", "or", "xor")


def _one_by_one(
    table: Array, targets: Array, rows: Array, monoid: str, element_type: str
) -> Array:
    made = table.copy()
    for number, target in enumerate(targets.tolist()):
        combine_window([made[target]], [rows[number]], monoid, [element_type])
    return made


@pytest.mark.thinned(3)
@pytest.mark.parametrize("element_type", TYPES)
def test_rows_are_combined_in_order(element_type: str) -> None:
    generator = np.random.default_rng(8)
    is_float = storage_dtype(element_type).kind == "f"
    for monoid in ("add", "multiply") if is_float else MONOIDS:
        for count, rows_of_table, width in ((40, 7, 1), (70, 900, 3), (9, 5, 67), (900, 600, 33)):
            table = some_values(element_type, rows_of_table * width, generator)
            rows = some_values(element_type, count * width, generator)
            table, rows = table.reshape(-1, width), rows.reshape(-1, width)
            targets = generator.integers(0, rows_of_table, count)
            for setting in (nullcontext(), computing()):  # the second one flushes subnormals
                with setting, np.errstate(all="ignore"):
                    with native_kernels(PLAIN):
                        wanted = _one_by_one(table, targets, rows, monoid, element_type)
                        plain = table.copy()
                        combine_rows([plain], targets, [rows], monoid, [element_type], False)
                    with native_kernels(FAST):
                        kernel = combining_kernel(monoid, element_type)
                        assert kernel is not None
                        assert kernel.code_for(AT_ONCE)
                        fast = table.copy()
                        assert combine_natively(fast, targets, rows, monoid, element_type)
                assert differences(wanted, plain) == 0, (monoid, count)
                assert differences(wanted, fast) == 0, (monoid, count)

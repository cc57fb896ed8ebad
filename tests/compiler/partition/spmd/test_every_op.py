"""Every op gives each device its block of what the op gives on whole arrays, however it is divided.

Shardings are drawn: axes in any order, dimensions that do not divide, devices in several orders.
Paddings of parameters are nan. `tools.fuzz_ops` and `tools.fuzz_programs` draw ops and programs.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from hloipu_compiler.errors import InvalidHloError
from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.participants import evaluate_participants
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.ir.ops import COLLECTIVES
from hloipu_compiler.partition.spmd.blocks import PRED, Blocks
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import UnsupportedError
from tests.support.arrays import Array
from tests.support.blocks import check_on_devices
from tests.support.random_shardings import with_random_shardings
from tools.conformance.values import inputs_of
from tools.fuzz_ops.form import Form, case_of, sizes_of
from tools.fuzz_ops.forms import computing_forms
from tools.fuzz_ops.moving_forms import moving_forms
from tools.fuzz_programs.program import generate
from tools.fuzz_spmd import judging

NOT_DIVIDED = COLLECTIVES | {"copy-done"}
"""Opcodes that mean nothing outside of manual regions, and pairs, which are made one op before."""
DRAWS = 6
"""Sizes and shardings of each form; some sizes are of no op."""


@cache
def forms() -> dict[str, list[Form]]:
    """Return the forms of each opcode whose values are settled."""
    found: dict[str, list[Form]] = {}
    for form in (*computing_forms(), *moving_forms()):
        case = case_of(form, "f32", sizes_of(form))
        if case.judged == "values" and case.opcode not in NOT_DIVIDED:
            found.setdefault(case.opcode, []).append(form)
    return found


def drawn(form: Form, draws: np.random.Generator) -> tuple[Module, list[Array]] | None:
    """Return an op of random sizes with arguments; None where there is no such op."""
    sizes = {name: int(n * draws.integers(1, 6)) for name, n in sizes_of(form).items()}
    for element_type in ("f32", "u32"):
        try:
            case = case_of(form, element_type, sizes)
            module = parse(case.text)
            verify(module)
            evaluate_participants(module, [arguments := list(inputs_of(case))])
            return module, arguments
        except (InvalidHloError, UnsupportedError, ValueError):
            continue
    return None


def check(module: Module, arguments: list[Array], draws: np.random.Generator) -> None:
    expected = evaluate_participants(module, [arguments])[0]
    check_on_devices(with_random_shardings(module, draws), arguments, expected, 2e-3)


@pytest.mark.parametrize("opcode", sorted(forms()))
def test_an_op_on_blocks_gives_blocks(opcode: str) -> None:
    seen = 0
    for number, form in enumerate(forms()[opcode]):
        for seed in range(DRAWS):
            draws = np.random.default_rng((seed, number))
            found = drawn(form, draws)
            if found is not None:
                check(*found, draws)
                seen += 1
                if seen % 2 == 0:
                    break
    assert seen


@pytest.mark.parametrize("number", range(12))
def test_a_program_on_blocks_gives_blocks(number: int) -> None:
    program = generate(5, number)
    module = parse(program.text)
    verify(module)
    check(module, program.arguments(), np.random.default_rng((7, number)))


@pytest.mark.parametrize("seed", range(1, 61, 2))
def test_a_chain_of_ops_in_words_of_shardy_gives_blocks(seed: int) -> None:
    judging.check(seed)


@pytest.mark.parametrize(("shift", "permutes"), [(1, 1), (4, 1), (6, 2), (15, 1)])
def test_a_roll_moves_no_row_twice(shift: int, permutes: int) -> None:
    """Blocks have 4 rows; what comes round to its own block stays there."""
    module = parse(
        "HloModule m\nENTRY e {\n  x = f32[16,3] parameter(0), sharding={devices=[4,1]<=[4]}\n"
        f"  a = f32[{16 - shift},3] slice(x), slice={{[{shift}:16], [0:3]}}\n"
        f"  b = f32[{shift},3] slice(x), slice={{[0:{shift}], [0:3]}}\n"
        "  ROOT c = f32[16,3] concatenate(a, b), dimensions={0}\n}"
    )
    verify(module)
    x = np.arange(48, dtype=np.float32).reshape(16, 3)
    local = check_on_devices(module, [x], [np.roll(x, -shift, 0)])
    assert [y.opcode for y in local.entry.instructions if y.opcode in COLLECTIVES] == [
        "collective-permute"
    ] * permutes


def _unmasked(self: Blocks, like: Any, at: int, *rest: Any) -> int:
    return at


def _all_rows(self: Blocks, like: Any, length: int, *bounds: Any) -> int:
    return self.spread(like, self.constant(like, PRED, True), (length,))


def _next_block(starts: Callable[..., int]) -> Callable[..., int]:
    def shifted(self: Blocks, like: Any, parts: Any, values: Any, *kind: Any) -> int:
        return starts(self, like, parts, np.roll(values, 1, 0), *kind)

    return shifted


FAULTS: dict[str, tuple[object, str, object, str]] = {
    "padding counts": (Blocks, "masked", _unmasked, "dot"),
    "padding counts in a reduction": (Blocks, "masked", _unmasked, "reduce"),
    "rows outside are written": (Blocks, "rows_between", _all_rows, "dynamic-update-slice"),
    "starts of another block": (Blocks, "by_block", _next_block(Blocks.by_block), "reduce-window"),
    "indices of another block": (Blocks, "by_block", _next_block(Blocks.by_block), "scatter"),
    "no total of the blocks before": (Blocks, "kept", _unmasked, "reduce-window"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, planted, opcode = FAULTS[fault]
    monkeypatch.setattr(owner, name, planted)
    with pytest.raises(AssertionError):
        check_forms(opcode)


def check_forms(opcode: str) -> None:
    for seed in range(20):
        for number, form in enumerate(forms()[opcode]):
            draws = np.random.default_rng((seed, number))
            found = drawn(form, draws)
            if found is not None:
                check(*found, draws)

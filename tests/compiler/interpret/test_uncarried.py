"""Closed forms for ops that XLA:CPU cannot judge; `tools.conformance.uncarried` lists them."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.interpret.evaluator import evaluate


def run(text: str, *arguments: Any) -> list[Any]:
    return evaluate(parse(text), *arguments)


def entry(body: str, before: str = "") -> str:
    return f"HloModule m\n\n{before}ENTRY main {{\n{body}\n}}\n"


SUM = (
    "f {\n  a = f32[3] parameter(0)\n  b = f32[3] parameter(1)\n  ROOT c = f32[3] add(a, b)\n}\n\n"
)
X, Y = np.array([1, 2, 3], np.float32), np.array([10, 20, 30], np.float32)


@pytest.mark.parametrize("updates", [0, 1, 2])
def test_async_call_is_its_computation(updates: int) -> None:
    shape = "((f32[3], f32[3]), f32[3])"
    steps = "".join(f"  s{i + 1} = {shape} async-update(s{i})\n" for i in range(updates))
    body = (
        "  x = f32[3] parameter(0)\n  y = f32[3] parameter(1)\n"
        f"  s0 = {shape} async-start(x, y), calls=f\n{steps}"
        f"  ROOT r = f32[3] async-done(s{updates})"
    )
    np.testing.assert_array_equal(run(entry(body, SUM), X, Y)[0], [11, 22, 33])


def test_copy_pair_is_the_operand() -> None:
    body = (
        "  x = f32[3] parameter(0)\n  s = (f32[3], f32[3], u32[]) copy-start(x)\n"
        "  ROOT r = f32[3] copy-done(s)"
    )
    np.testing.assert_array_equal(run(entry(body), X)[0], X)


def test_bitcast_reads_memory_in_the_new_layout() -> None:
    body = "  x = s32[2,3]{0,1} parameter(0)\n  ROOT r = s32[3,2]{1,0} bitcast(x)"
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    np.testing.assert_array_equal(run(entry(body), x)[0], x.T)
    body = "  x = s32[2,3]{1,0} parameter(0)\n  ROOT r = s32[3,2]{1,0} bitcast(x)"
    np.testing.assert_array_equal(run(entry(body), x)[0], x.reshape(3, 2))


def test_stochastic_convert_rounds_up_as_often_as_asked() -> None:
    body = (
        "  x = f32[3] parameter(0)\n  r = u32[3] parameter(1)\n"
        "  ROOT c = bf16[3] stochastic-convert(x, r)"
    )
    # 1 + 2^-9 lies a quarter of the way from 1 to the next bf16 value.
    x = np.full(3, 1 + 2.0**-9, np.float32)
    bits = np.array([0, 2**30 - 1, 2**30 + 1], np.uint32)
    np.testing.assert_array_equal(
        run(entry(body), x, bits)[0].astype(np.float32), [1 + 2.0**-7, 1 + 2.0**-7, 1]
    )


def test_scan_hands_on_its_carry() -> None:
    step = (
        "f {\n  x = s32[2] parameter(0)\n  c = s32[2] parameter(1)\n  n = s32[2] add(x, c)\n"
        "  ROOT t = (s32[2], s32[2]) tuple(n, n)\n}\n\n"
    )
    body = (
        "  x = s32[3,2] parameter(0)\n  c = s32[2] parameter(1)\n"
        "  ROOT r = (s32[3,2], s32[2]) scan(x, c), dimensions={0}, num_carries=1, to_apply=f"
    )
    x = np.array([[1, 2], [3, 4], [5, 6]], np.int32)
    sums, last = run(entry(body, step), x, np.array([10, 20], np.int32))
    np.testing.assert_array_equal(sums, [[11, 22], [14, 26], [19, 32]])
    np.testing.assert_array_equal(last, [19, 32])


@pytest.mark.parametrize("kind", ["kLoop", "kInput", "kOutput", "kCustom"])
def test_fusion_with_two_results(kind: str) -> None:
    called = (
        "g {\n  a = f32[3] parameter(0)\n  b = f32[3] add(a, a)\n"
        "  ROOT t = (f32[3], f32[3]) tuple(b, a)\n}\n\n"
    )
    body = f"  x = f32[3] parameter(0)\n  ROOT r = (f32[3], f32[3]) fusion(x), kind={kind}, calls=g"
    twice, same = run(entry(body, called), X)
    np.testing.assert_array_equal(twice, [2, 4, 6])
    np.testing.assert_array_equal(same, X)


def test_domain_is_the_operand() -> None:
    body = (
        '  x = f32[3] parameter(0)\n  ROOT r = f32[3] domain(x), domain={kind="sharding", '
        "entry={maximal device=0}, exit={maximal device=1}}"
    )
    np.testing.assert_array_equal(run(entry(body), X)[0], X)


def test_collective_pairs_of_one_participant() -> None:
    body = (
        "  x = f32[3] parameter(0)\n"
        "  s = (f32[3], f32[3]) all-gather-start(x), dimensions={0}, replica_groups={{0}}\n"
        "  ROOT r = f32[3] all-gather-done(s)"
    )
    np.testing.assert_array_equal(run(entry(body), X)[0], X)


@pytest.mark.parametrize("name", ["s2", "u2"])
def test_packed_two_bit_integers(name: str) -> None:
    dtype = {"s2": ml_dtypes.int2, "u2": ml_dtypes.uint2}[name]
    x = np.arange(4).astype(np.int8).astype(dtype)
    body = (
        f"  x = {name}[4] parameter(0)\n  y = {name}[4] reverse(x), dimensions={{0}}\n"
        f"  ROOT r = {name}[8] concatenate(x, y), dimensions={{0}}"
    )
    got = run(entry(body), x)[0].astype(np.int8)
    signed = [0, 1, -2, -1] if name == "s2" else [0, 1, 2, 3]
    np.testing.assert_array_equal(got, signed + signed[::-1])
    less = (
        f"lt {{\n  a = {name}[] parameter(0)\n  b = {name}[] parameter(1)\n"
        "  ROOT c = pred[] compare(a, b), direction=LT\n}\n\n"
    )
    sort = "sort(x), dimensions={0}, to_apply=lt"
    body = f"  x = {name}[4] parameter(0)\n  ROOT r = {name}[4] {sort}"
    np.testing.assert_array_equal(run(entry(body, less), x)[0].astype(np.int8), sorted(signed))


def test_dot_of_four_bit_integers_accumulates_wide() -> None:
    body = (
        "  x = s4[1,100] parameter(0)\n  y = s4[100,1] parameter(1)\n"
        "  ROOT r = s32[1,1] dot(x, y), "
        "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    )
    x = np.full((1, 100), -8).astype(ml_dtypes.int4)
    np.testing.assert_array_equal(run(entry(body), x, x.reshape(100, 1))[0], [[6400]])

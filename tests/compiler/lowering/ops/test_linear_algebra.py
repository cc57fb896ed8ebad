"""Cholesky, triangular solve and LAPACK calls on tiles, in both modes, by closed forms."""

from typing import Any

import numpy as np
import pytest

from hloipu_compiler.errors import CodegenError
from hloipu_runtime.program.program import Program, Variable
from tests.support.on_tiles import Given, check_on_tiles, groups_of, programs_of, results_of

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(14)


def _triangles(count: int, n: int) -> Array:
    """Return lower triangles of small integers with a positive diagonal: products are exact."""
    x = np.tril(RNG.integers(-3, 4, (count, n, n)))
    x[:, range(n), range(n)] = RNG.integers(1, 4, (count, n))
    return np.asarray(x.astype(np.float32))


@pytest.mark.parametrize("lower", [True, False])
def test_cholesky_finds_the_factor(lower: bool) -> None:
    factor = _triangles(9, 7)
    a = factor @ factor.swapaxes(1, 2)
    text = f"""HloModule factors
    ENTRY e {{
      a = f32[9,7,7] parameter(0)
      ROOT r = f32[9,7,7] cholesky(a), lower={str(lower).lower()}
    }}"""
    expected = factor if lower else factor.swapaxes(1, 2)
    programs = check_on_tiles(text, [a], [expected], relative=1e-3, absolute=1e-3)
    assert [g.tiles.count for g in groups_of(programs[-1])] == [9]


@pytest.mark.parametrize("left_side", [True, False])
@pytest.mark.parametrize("transpose", ["NO_TRANSPOSE", "TRANSPOSE"])
def test_triangular_solve_finds_the_solution(left_side: bool, transpose: str) -> None:
    a = _triangles(3, 5)
    x = RNG.integers(-4, 5, (3, 5, 20) if left_side else (3, 20, 5)).astype(np.float32)
    op = a if transpose == "NO_TRANSPOSE" else a.swapaxes(1, 2)
    b = op @ x if left_side else x @ op
    shape = f"f32[{','.join(map(str, b.shape))}]"
    text = f"""HloModule solves
    ENTRY e {{
      a = f32[3,5,5] parameter(0)
      b = {shape} parameter(1)
      ROOT r = {shape} triangular-solve(a, b), left_side={str(left_side).lower()}, lower=true,
        unit_diagonal=false, transpose_a={transpose}
    }}"""
    check_on_tiles(text, [a, b], [x], relative=1e-3, absolute=1e-3)


def test_lapack_call() -> None:
    factor = _triangles(9, 7)
    a = factor @ factor.swapaxes(1, 2)
    text = """HloModule calls
    ENTRY e {
      a = f32[9,7,7] parameter(0)
      r = (f32[9,7,7], s32[9]) custom-call(a), custom_call_target="lapack_spotrf_ffi",
        api_version=API_VERSION_TYPED_FFI, backend_config={uplo = 76 : ui8}
      f = f32[9,7,7] get-tuple-element(r), index=0
      i = s32[9] get-tuple-element(r), index=1
      g = f32[9,7,7] custom-call(f), custom_call_target="Sharding"
      ROOT t = (f32[9,7,7], s32[9]) tuple(g, i)
    }"""
    expected = factor + np.triu(a, 1)
    check_on_tiles(text, [a], [expected, np.zeros(9, np.int32)], relative=1e-3, absolute=1e-3)


def test_unknown_target() -> None:
    text = """HloModule calls
    ENTRY e {
      x = f32[9] parameter(0)
      ROOT r = f32[9] custom-call(x), custom_call_target="nobody_knows"
    }"""
    with pytest.raises(CodegenError, match="'nobody_knows'"):
        programs_of(text)


@pytest.mark.parametrize("kind", ["f32", "c64", "bf16"])
@pytest.mark.parametrize("lower", [True, False])
def test_large_matrices_are_factored_in_blocks(kind: str, lower: bool) -> None:
    n = 150
    factor = np.tril(RNG.standard_normal((2, n, n)) / 20) + np.eye(n)
    if kind == "c64":
        factor = factor + 1j * np.tril(RNG.standard_normal((2, n, n)) / 20, -1)
    a = factor @ factor.conj().swapaxes(1, 2)
    a[1, 100, 100] = -1  # not positive definite
    # Only one triangle is read.
    given = np.tril(a) if lower else np.triu(a)
    text = f"""HloModule factors
    ENTRY e {{
      a = {kind}[2,{n},{n}] parameter(0)
      ROOT r = {kind}[2,{n},{n}] cholesky(a), lower={str(lower).lower()}
    }}"""
    expected = factor if lower else factor.conj().swapaxes(1, 2)
    expected[1] = np.nan
    error = 1e-2 if kind == "bf16" else 1e-4
    stored = np.complex64 if kind == "c64" else np.float32
    programs = check_on_tiles(
        text, [given.astype(stored)], [expected], relative=error, absolute=error
    )
    assert max(g.tiles.count for g in groups_of(programs[-1])) > 100
    assert max(v.shape[-1] for v in _operands_of(programs[-1], "cholesky")) == 32


@pytest.mark.parametrize("transpose", ["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("left_side", [True, False])
def test_large_systems_are_solved_in_blocks(left_side: bool, lower: bool, transpose: str) -> None:
    n, kind = 130, "c64" if transpose == "ADJOINT" else "f32"
    a = RNG.standard_normal((n, n)) / 20 + 2 * np.eye(n)
    if kind == "c64":
        a = a + 1j * RNG.standard_normal((n, n)) / 20
    triangle = np.tril(a) if lower else np.triu(a)
    op = triangle if transpose == "NO_TRANSPOSE" else triangle.T
    op = op.conj() if transpose == "ADJOINT" else op
    x = RNG.standard_normal((n, 7) if left_side else (7, n))
    b = op @ x if left_side else x @ op
    shape = f"{kind}[{','.join(map(str, b.shape))}]"
    text = f"""HloModule solves
    ENTRY e {{
      a = {kind}[{n},{n}] parameter(0)
      b = {shape} parameter(1)
      ROOT r = {shape} triangular-solve(a, b), left_side={str(left_side).lower()},
        lower={str(lower).lower()}, unit_diagonal=false, transpose_a={transpose}
    }}"""
    stored = np.complex64 if kind == "c64" else np.float32
    given = [a.astype(stored), b.astype(stored)]
    programs = check_on_tiles(text, given, [x.astype(a.dtype)], relative=1e-3, absolute=1e-3)
    assert max(v.shape[-1] for v in _operands_of(programs[-1], "triangular_solve")) <= 32


@pytest.mark.parametrize("uplo", ["L", "U"])
def test_large_lapack_calls_are_cut(uplo: str) -> None:
    n = 140
    factor = np.tril(RNG.standard_normal((n, n)) / 20) + np.eye(n)
    a = factor @ factor.T
    text = f"""HloModule calls
    ENTRY e {{
      a = f32[{n},{n}] parameter(0)
      b = f32[{n},3] parameter(1)
      r = (f32[{n},{n}], s32[]) custom-call(a), custom_call_target="lapack_spotrf_ffi",
        api_version=API_VERSION_TYPED_FFI, backend_config={{uplo = {ord(uplo)} : ui8}}
      f = f32[{n},{n}] get-tuple-element(r), index=0
      i = s32[] get-tuple-element(r), index=1
      x = f32[{n},3] custom-call(f, b), custom_call_target="lapack_strsm_ffi",
        api_version=API_VERSION_TYPED_FFI, backend_config={{diag = 78 : ui8, side = 76 : ui8,
        trans_x = 84 : ui8, uplo = {ord(uplo)} : ui8}}
      ROOT t = (f32[{n},{n}], s32[], f32[{n},3]) tuple(f, i, x)
    }}"""
    x = RNG.standard_normal((n, 3))
    kept = factor + np.triu(a, 1) if uplo == "L" else factor.T + np.tril(a, -1)
    b = (factor.T if uplo == "L" else factor) @ x
    given = [a.astype(np.float32), b.astype(np.float32)]
    failing = [(a - 3 * np.eye(n)).astype(np.float32), given[1]]
    wanted: list[Array] = [kept, np.zeros((), np.int32), x]
    programs = check_on_tiles(text, given, wanted, relative=1e-3, absolute=1e-3)
    for program in programs:
        assert {g.codelet.name for g in groups_of(program)} >= {"cholesky", "triangular_solve"}
        for results in results_of(program, *failing):
            assert results[1] == 1


@pytest.mark.parametrize(("side", "trans", "uplo"), ["LNL", "LTU", "RNU"])
def test_a_small_lapack_solve_has_its_right_hand_sides_over_tiles(
    side: str, trans: str, uplo: str
) -> None:
    n, count = 20, 60
    shape = (n, count) if side == "L" else (count, n)
    letters = f"side = {ord(side)} : ui8, trans_x = {ord(trans)} : ui8, uplo = {ord(uplo)} : ui8"
    b = f"f32[{shape[0]},{shape[1]}]"
    text = f"""HloModule m
    ENTRY e {{
      a = f32[{n},{n}] parameter(0)
      b = {b} parameter(1)
      ROOT x = {b} custom-call(a, b), custom_call_target="lapack_strsm_ffi",
        api_version=API_VERSION_TYPED_FFI, backend_config={{diag = 78 : ui8, {letters}}}
    }}"""
    full = RNG.standard_normal((n, n)) + 9 * np.eye(n)
    triangle = np.tril(full) if uplo == "L" else np.triu(full)
    applied = triangle.T if trans == "T" else triangle
    x = RNG.standard_normal(shape)
    product = applied @ x if side == "L" else x @ applied
    given: list[Array] = [full.astype(np.float32), product.astype(np.float32)]
    gc200: list[Given] = [("gc200", {})]
    (program,) = check_on_tiles(text, given, [x], relative=1e-3, absolute=1e-4, machines=gc200)
    solving = [g for g in groups_of(program) if g.codelet.name == "triangular_solve"]
    assert [g.tiles.count for g in solving] == [count]


def _operands_of(program: Program, codelet: str) -> list[Variable]:
    """Return what vertices of a codelet read first."""
    groups = [g for g in groups_of(program) if g.codelet.name == codelet]
    return [program.variables[g.inputs[0].variable] for g in groups]

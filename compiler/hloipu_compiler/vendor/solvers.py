"""Linear algebra of cuSOLVER, hipSOLVER and TPUs, as the LAPACK routines of JAX on CPUs.

JAX lowers a factorisation to one call with the same operands on all of them, and differs in names
and attributes: jax-ml/jax: jax/_src/lax/linalg.py. cuSOLVER's Jacobi and polar forms of the
singular value decomposition give V where LAPACK gives its adjoint; sides that nobody asked for are
allocated all the same, or numbers. TPUs count pivots from 0 and give the permutation with them.
"""

from collections.abc import Sequence

from hloipu_compiler.formulas.call import Call, formula
from hloipu_compiler.formulas.text import Value
from hloipu_compiler.vendor.selecting import permutation_of
from hloipu_runtime.element_types import shape_text

_LETTERS = {"f32": "s", "f64": "d", "c64": "c", "c128": "z"}
_OF_COMPLEX = {"orgqr": "ungqr", "syevd": "heevd", "sytrd": "hetrd"}
_Sizes = tuple[int, ...]


def _solver(*routines: str) -> tuple[str, ...]:
    return tuple(f"{maker}solver_{x}_ffi" for x in routines for maker in ("cu", "hip"))


def _lapack(
    call: Call,
    routine: str,
    operands: Sequence[Value],
    results: Sequence[tuple[str, _Sizes]],
    **letters: str,
) -> list[Value]:
    """Append a call of a LAPACK routine; `letters`: its attributes, each a letter."""
    kind = operands[0].kind
    call.need(kind in _LETTERS, f"it takes {kind}")
    if kind[0] == "c":
        routine = _OF_COMPLEX.get(routine, routine)
    attributes = ", ".join(f"{key} = {ord(letter)} : ui8" for key, letter in letters.items())
    given = ", ".join(x.name for x in operands)
    rank = max(x.rank for x in operands)
    lying = ", ".join(shape_text(x.kind, x.dims) + _layout(x.rank, rank) for x in operands)
    marks = (
        f'custom_call_target="lapack_{_LETTERS[kind]}{routine}_ffi", '
        f"operand_layout_constraints={{{lying}}}, "
        f"api_version=API_VERSION_TYPED_FFI, backend_config={{{attributes}}}"
    )
    layouts = [_layout(len(dims), rank) for _, dims in results]
    return call.text.several(results, f"custom-call({given}), {marks}", layouts)


def _layout(rank: int, matrices: int) -> str:
    """Return the layout in which LAPACK takes an array: matrices, of a rank, by columns."""
    order = list(range(rank))[::-1]
    if rank == matrices:
        order[:2] = order[1::-1]
    return f"{{{','.join(map(str, order))}}}" if order else ""


def _matrix(call: Call) -> Value:
    (a,) = call.takes(1)
    call.need(a.rank >= 2, f"{a.dims} are no matrices")
    return a


def _info(a: Value) -> tuple[str, _Sizes]:
    return "s32", a.dims[:-2]


def _side(call: Call) -> str:
    return "L" if call.flag("lower") else "U"


@formula(*_solver("potrf"))
def _cholesky(call: Call) -> Sequence[Value]:
    return _lapack(call, "potrf", [_matrix(call)], call.results, uplo=_side(call))


@formula(*_solver("getrf"), "cublas_getrf_batched_ffi", "hipblas_getrf_batched_ffi")
def _lu(call: Call) -> Sequence[Value]:
    return _lapack(call, "getrf", [_matrix(call)], call.results)


@formula("LuDecomposition")
def _lu_of_tpus(call: Call) -> Sequence[Value]:
    a = _matrix(call)
    call.need(len(call.results) == 3, "it gives factors, pivots and a permutation")
    factors, pivots, _ = _lapack(call, "getrf", [a], [*call.results[:2], _info(a)])
    pivots = pivots - 1
    return [factors, pivots, permutation_of(call, pivots, call.results[2])]


@formula(*_solver("geqrf"), "cublas_geqrf_batched_ffi", "hipblas_geqrf_batched_ffi", "Qr")
def _qr(call: Call) -> Sequence[Value]:
    return _lapack(call, "geqrf", [_matrix(call)], call.results)


@formula(*_solver("orgqr"), "ProductOfElementaryHouseholderReflectors")
def _product_of_reflectors(call: Call) -> Sequence[Value]:
    return _lapack(call, "orgqr", call.takes(2), call.results)


@formula(*_solver("syevd"))
def _eigenvalues(call: Call) -> Sequence[Value]:
    return _lapack(call, "syevd", [_matrix(call)], call.results, mode="V", uplo=_side(call))


@formula("Eigh")
def _eigenvalues_of_tpus(call: Call) -> Sequence[Value]:
    """Return vectors and values in ascending order, which one that asks for none takes too."""
    a = _matrix(call)
    uplo = "L" if call.configuration.startswith("1") else "U"
    results = [*call.results, _info(a)]
    return _lapack(call, "syevd", [a], results, mode="V", uplo=uplo)[:-1]


@formula(*_solver("sytrd"))
def _tridiagonal(call: Call) -> Sequence[Value]:
    return _lapack(call, "sytrd", [_matrix(call)], call.results, uplo=_side(call))


@formula("cusparse_gtsv2_ffi", "hipsparse_gtsv2_ffi")
def _tridiagonal_solve(call: Call) -> Sequence[Value]:
    operands = call.takes(4)
    results = [*((x.kind, x.dims) for x in operands), _info(operands[3])]
    return [_lapack(call, "gtsv", operands, results)[3]]


@formula(*_solver("gesvd", "gesdd", "gesvdj", "gesvdp"))
def _singular_values(call: Call) -> Sequence[Value]:
    a = _matrix(call)
    kind, batch, (m, n) = a.kind, a.dims[:-2], a.dims[-2:]
    gives_v = "gesvdj" in call.target or "gesvdp" in call.target
    call.need(len(call.results) == 5, "it gives five arrays")
    is_whole, has_vectors = call.flag("full_matrices"), call.flag("compute_uv")
    k = min(m, n)
    sides = [(kind, (*batch, m, m if is_whole else k)), (kind, (*batch, n if is_whole else k, n))]
    mode = ("A" if is_whole else "S") if has_vectors else "N"
    results = [*call.results[:2], *sides, _info(a)]
    overwritten, s, u, vt, info = _lapack(call, "gesdd", [a], results, mode=mode)
    left, right = u, vt
    if gives_v:
        order = (*range(len(batch)), len(batch) + 1, len(batch))
        right = vt.transposed(order)
        if kind[0] == "c":
            real = call.results[1][0]
            conjugate = right.unary("real", real), -right.unary("imag", real)
            right = call.text.add("complex", kind, right.dims, ", ".join(x.name for x in conjugate))
    if call.flag("transposed", default=False):
        left, right = right, left
    vectors = [
        x if dims else call.text.number(kind, 0.0)
        for x, (_, dims) in zip((left, right), call.results[2:4], strict=True)
    ]
    return [overwritten, s, *vectors, info]


@formula("__cusolver$cholesky")
def _cholesky_of_optimised_texts(call: Call) -> Sequence[Value]:
    a = _matrix(call)
    call.need(len(call.results) == 3, "it gives a factor, a workspace and whether that failed")
    options = call.section("cholesky_options") if call.has("cholesky_options") else call
    factor, info = _lapack(
        call, "potrf", [a], [call.results[0], call.results[2]], uplo=_side(options)
    )
    return [factor, call.text.full(*call.results[1], 0.0), info]

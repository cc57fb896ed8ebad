"""Forms of the ops that move elements, of control flow, collectives, and library calls."""

from collections.abc import Iterator
from functools import partial

from tools.conformance.case import scalar_region
from tools.fuzz_ops.form import Form, Instruction, array, combiner_region, shaped
from tools.fuzz_ops.forms import COMBINERS


def broadcast(t: str, m: int = 2, n: int = 3, k: int = 4) -> Instruction:
    """Return an array along new dimensions."""
    return Instruction("broadcast", (array(t, n),), shaped(t, m, n, k), "dimensions={1}")


def broadcast_scalar(t: str, m: int = 2, n: int = 3) -> Instruction:
    """Return a scalar everywhere."""
    return Instruction("broadcast", (array(t),), shaped(t, m, n), "dimensions={}")


def iota(t: str, m: int = 2, n: int = 3) -> Instruction:
    """Return counted elements."""
    return Instruction("iota", (), shaped(t, m, n), "iota_dimension=1")


def constant(t: str, m: int = 2, n: int = 3) -> Instruction:
    """Return written elements."""
    one = "(1, 0)" if t in ("c64", "c128") else "1"
    row = "{" + ", ".join([one] * n) + "}"
    values = "{" + ", ".join([row] * m) + "}"
    return Instruction("constant", (), shaped(t, m, n), operands=values)


def unchanged(t: str, opcode: str = "copy", m: int = 2, n: int = 3) -> Instruction:
    """Return an op that hands its operand on."""
    return Instruction(opcode, (array(t, m, n),), shaped(t, m, n))


def reshape(t: str, opcode: str = "reshape", m: int = 2, n: int = 3, k: int = 4) -> Instruction:
    """Return two dimensions as one."""
    return Instruction(opcode, (array(t, m, n, k),), shaped(t, m * n, k))


def transpose(t: str, m: int = 2, n: int = 3, k: int = 4) -> Instruction:
    """Return dimensions in another order."""
    return Instruction("transpose", (array(t, m, n, k),), shaped(t, k, m, n), "dimensions={2,0,1}")


def reverse(t: str, m: int = 2, n: int = 3) -> Instruction:
    """Return one dimension backwards."""
    return Instruction("reverse", (array(t, m, n),), shaped(t, m, n), "dimensions={1}")


def slice_rows(t: str, m: int = 3, n: int = 7, k: int = 3) -> Instruction:
    """Return every second element from the second on."""
    stop = 2 * k
    return Instruction(
        "slice", (array(t, m, max(n, stop)),), shaped(t, m, k),
        f"slice={{[0:{m}], [0:{stop}:2]}}",
    )  # fmt: skip


def pad(t: str, m: int = 2, n: int = 3, low: int = 1, inner: int = 2) -> Instruction:
    """Return borders, and gaps between elements."""
    target = max(0, n + max(0, n - 1) * inner + low)
    return Instruction(
        "pad", (array(t, m, n), array(t)), shaped(t, m, target),
        f"padding=0_0x{low}_0_{inner}",
    )  # fmt: skip


def crop(t: str, m: int = 2, n: int = 4, k: int = 1) -> Instruction:
    """Return negative borders."""
    return Instruction(
        "pad", (array(t, m, max(n, k)), array(t)), shaped(t, m, max(n, k) - k),
        f"padding=0_0x0_-{k}",
    )  # fmt: skip


def concatenate(t: str, m: int = 2, n: int = 3, k: int = 4) -> Instruction:
    """Return two arrays one after the other."""
    return Instruction(
        "concatenate", (array(t, m, n), array(t, m, k)), shaped(t, m, n + k), "dimensions={1}"
    )


def dynamic_slice(t: str, index: str = "s32", m: int = 3, n: int = 5, k: int = 2) -> Instruction:
    """Return a window at a place known while running."""
    start = array(index, style="indices", bound=n)
    return Instruction(
        "dynamic-slice", (array(t, m, n), start, start), shaped(t, m, k),
        f"dynamic_slice_sizes={{{m},{k}}}",
    )  # fmt: skip


def dynamic_update_slice(
    t: str, index: str = "s32", m: int = 3, n: int = 5, k: int = 2
) -> Instruction:
    """Return a window written at a place known while running."""
    start = array(index, style="indices", bound=n)
    return Instruction(
        "dynamic-update-slice", (array(t, m, n), array(t, m, k), start, start), shaped(t, m, n)
    )


def gather_rows(
    t: str, index: str = "s32", m: int = 6, n: int = 4, count: int = 3, window: int = 4
) -> Instruction:
    """Return rows of a matrix, or parts of them."""
    return Instruction(
        "gather", (array(t, m, n), array(index, count, style="indices", bound=m)),
        shaped(t, count, window),
        "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
        f"slice_sizes={{1,{window}}}",
    )  # fmt: skip


def gather_windows(
    t: str, m: int = 4, n: int = 5, count: int = 3, coordinates: int = 2, window: int = 2
) -> Instruction:
    """Return windows of a matrix; without coordinates all of them begin at zero."""
    starts = "start_index_map={0,1}" if coordinates else "start_index_map={}"
    return Instruction(
        "gather", (array(t, m, n), array("s32", count, coordinates, style="indices", bound=4)),
        shaped(t, count, window, window),
        f"offset_dims={{1,2}}, collapsed_slice_dims={{}}, {starts}, index_vector_dim=1, "
        f"slice_sizes={{{window},{window}}}",
    )  # fmt: skip


def gather_batched(t: str, b: int = 2, m: int = 4, n: int = 3, count: int = 2) -> Instruction:
    """Return rows of each matrix of a batch."""
    return Instruction(
        "gather", (array(t, b, m, n), array("s32", b, count, 1, style="indices", bound=m)),
        shaped(t, b, count, n),
        "offset_dims={2}, collapsed_slice_dims={1}, start_index_map={1}, "
        "operand_batching_dims={0}, start_indices_batching_dims={0}, index_vector_dim=2, "
        f"slice_sizes={{1,1,{n}}}",
    )  # fmt: skip


def scatter_rows(
    t: str, combiner: str = "add", m: int = 6, n: int = 4, count: int = 3, window: int = 4
) -> Instruction:
    """Return rows combined into a matrix, or parts of them."""
    return Instruction(
        "scatter",
        (array(t, m, n), array("s32", count, style="indices", bound=m), array(t, count, window)),
        shaped(t, m, n),
        "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
        "index_vector_dim=1, to_apply=combine",
        combiner_region(combiner, t),
    )  # fmt: skip


def scatter_windows(
    t: str, combiner: str = "add", m: int = 4, n: int = 5, count: int = 3, coordinates: int = 2,
    window: int = 2,
) -> Instruction:  # fmt: skip
    """Return windows combined into a matrix; without coordinates all of them begin at zero."""
    places = "{0,1}" if coordinates else "{}"
    return Instruction(
        "scatter",
        (array(t, m, n), array("s32", count, coordinates, style="indices", bound=4),
         array(t, count, window, window)),
        shaped(t, m, n),
        "update_window_dims={1,2}, inserted_window_dims={}, "
        f"scatter_dims_to_operand_dims={places}, index_vector_dim=1, to_apply=combine",
        combiner_region(combiner, t),
    )  # fmt: skip


def scatter_points(
    t: str, combiner: str = "add", m: int = 5, count: int = 4, coordinates: int = 1
) -> Instruction:
    """Return single elements combined into a vector."""
    places = "{0}" if coordinates else "{}"
    return Instruction(
        "scatter",
        (array(t, m), array("s8", coordinates, count, style="indices", bound=m), array(t, count)),
        shaped(t, m),
        "update_window_dims={}, inserted_window_dims={0}, "
        f"scatter_dims_to_operand_dims={places}, index_vector_dim=0, to_apply=combine",
        combiner_region(combiner, t),
    )  # fmt: skip


def scatter_batched(t: str, b: int = 2, m: int = 4, n: int = 3, count: int = 2) -> Instruction:
    """Return rows combined into each matrix of a batch."""
    return Instruction(
        "scatter",
        (array(t, b, m, n), array("s32", b, count, 1, style="indices", bound=m),
         array(t, b, count, n)),
        shaped(t, b, m, n),
        "update_window_dims={2}, inserted_window_dims={1}, scatter_dims_to_operand_dims={1}, "
        "input_batching_dims={0}, scatter_indices_batching_dims={0}, index_vector_dim=2, "
        "to_apply=combine",
        combiner_region("add", t),
    )  # fmt: skip


def scatter_pairs(t: str, m: int = 4, n: int = 3, count: int = 2) -> Instruction:
    """Return rows combined into two matrices at once."""
    region = (
        f"combine {{\n  a = {t}[] parameter(0)\n  b = s32[] parameter(1)\n"
        f"  c = {t}[] parameter(2)\n  d = s32[] parameter(3)\n  x = {t}[] add(a, c)\n"
        f"  y = s32[] maximum(b, d)\n  ROOT z = ({t}[], s32[]) tuple(x, y)\n}}\n\n"
    )
    return Instruction(
        "scatter",
        (array(t, m, n), array("s32", m, n), array("s32", count, 1, style="indices", bound=m),
         array(t, count, n), array("s32", count, n)),
        f"({shaped(t, m, n)}, {shaped('s32', m, n)})",
        "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
        "index_vector_dim=1, to_apply=combine",
        region,
    )  # fmt: skip


def one_of_a_tuple(t: str, m: int = 2, n: int = 3) -> Instruction:
    """Return an element of a tuple."""
    whole = shaped(t, m, n)
    before = f"  s = ({whole}, s32[]) tuple(p0, p1)\n"
    inputs = (array(t, m, n), array("s32"))
    return Instruction("get-tuple-element", inputs, whole, "index=0", "", before, "s")


def dimension_size(t: str, m: int = 2, n: int = 3) -> Instruction:
    """Return the size of a dimension."""
    return Instruction("get-dimension-size", (array(t, m, n),), "s32[]", "dimensions={1}")


def after_tokens(t: str, m: int = 2, n: int = 3) -> Instruction:
    """Return an array that waits for a token."""
    before = "  k = token[] after-all()\n"
    whole = array(t, m, n)
    return Instruction("add-dependency", (whole,), whole.shape, "", "", before, "p0, k")


def copied_later(t: str, m: int = 2, n: int = 3) -> Instruction:
    """Return a copy in two steps."""
    whole = array(t, m, n)
    before = f"  s = ({whole.shape}, {whole.shape}, u32[]) copy-start(p0)\n"
    return Instruction("copy-done", (whole,), whole.shape, "", "", before, "s")


def _sum_region(name: str, shape: str) -> str:
    return (
        f"{name} {{\n  a = {shape} parameter(0)\n  b = {shape} parameter(1)\n"
        f"  ROOT c = {shape} add(a, b)\n}}\n\n"
    )


def call(t: str, opcode: str = "call", m: int = 2, n: int = 3) -> Instruction:
    """Return a call or a fusion."""
    whole = array(t, m, n)
    attributes = "to_apply=f" if opcode == "call" else "kind=kLoop, calls=f"
    region = _sum_region("f", whole.shape)
    return Instruction(opcode, (whole, whole), whole.shape, attributes, region)


def loop(t: str, trips: int = 3, m: int = 2, n: int = 3) -> Instruction:
    """Return a counted loop that fills rows of an array, as JAX prints a scan."""
    rows, row = shaped(t, trips, m, n), shaped(t, m, n)
    state = f"(s32[], {row}, {rows})"
    regions = (
        f"body {{\n  s = {state} parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n"
        f"  a = {row} get-tuple-element(s), index=1\n"
        f"  ys = {rows} get-tuple-element(s), index=2\n  z = s32[] constant(0)\n"
        f"  one = s32[] constant(1)\n  c = {row} add(a, a)\n"
        f"  y = {shaped(t, 1, m, n)} reshape(c)\n"
        f"  zs = {rows} dynamic-update-slice(ys, y, i, z, z)\n  j = s32[] add(i, one)\n"
        f"  ROOT t = {state} tuple(j, c, zs)\n}}\n\n"
        f"condition {{\n  s = {state} parameter(0)\n"
        f"  i = s32[] get-tuple-element(s), index=0\n  n = s32[] constant({trips})\n"
        f"  ROOT c = pred[] compare(i, n), direction=LT\n}}\n\n"
    )
    before = f"  z = s32[] constant(0)\n  s = {state} tuple(z, p0, p1)\n"
    return Instruction(
        "while", (array(t, m, n), array(t, trips, m, n)), state, "condition=condition, body=body",
        regions, before, "s",
    )  # fmt: skip


def conditional(t: str, m: int = 2, n: int = 3) -> Instruction:
    """Return one of two branches."""
    whole = array(t, m, n)
    regions = "".join(
        f"f{number} {{\n  a = {whole.shape} parameter(0)\n  ROOT b = {whole.shape} {op}\n}}\n\n"
        for number, op in enumerate(("add(a, a)", "copy(a)"))
    )
    return Instruction(
        "conditional", (array("pred"), whole, whole), whole.shape,
        "true_computation=f0, false_computation=f1", regions,
    )  # fmt: skip


def collective(t: str, opcode: str = "all-reduce", m: int = 2, n: int = 3) -> Instruction:
    """Return a collective of one participant."""
    whole = array(t, m, n)
    attributes = {
        "all-reduce": "replica_groups={{0}}, to_apply=combine",
        "reduce-scatter": "replica_groups={{0}}, dimensions={1}, to_apply=combine",
        "all-gather": "replica_groups={{0}}, dimensions={1}",
        "all-to-all": "replica_groups={{0}}, dimensions={1}",
        "collective-broadcast": "replica_groups={{0}}",
        "collective-permute": "source_target_pairs={{0,0}}",
    }[opcode]
    region = scalar_region("combine", "add", t) if "to_apply" in attributes else ""
    return Instruction(opcode, (whole,), whole.shape, attributes, region)


def ragged_all_to_all(t: str, m: int = 4, n: int = 3, count: int = 1) -> Instruction:
    """Return rows by groups of different lengths, of one participant."""
    row = array("s64", count, style="zeros")
    return Instruction(
        "ragged-all-to-all", (array(t, m, n), array(t, m, n), row, row, row, row),
        shaped(t, m, n), "replica_groups={{0}}",
    )  # fmt: skip


def top_k_call(t: str, m: int = 2, n: int = 7, k: int = 3) -> Instruction:
    """Return JAX's custom call for the largest of each row."""
    return Instruction(
        "custom-call", (array(t, m, n),), f"({shaped(t, m, k)}, {shaped('s32', m, k)})",
        'custom_call_target="TopK"',
    )  # fmt: skip


_LETTER = {"f32": "s", "f64": "d", "c64": "c", "c128": "z"}
_REAL = {"c64": "f32", "c128": "f64"}


def singular_values(t: str, mode: str = "A", b: int = 2, m: int = 4, n: int = 3) -> Instruction:
    """Return singular values, with all vectors, the first few, or none."""
    letter, real, few = _LETTER.get(t, "s"), _REAL.get(t, t), min(m, n)
    left, right = (m, n) if mode == "A" else (few, few)
    return Instruction(
        "custom-call", (array(t, b, m, n, style="moderate"),),
        f"({shaped(t, b, m, n)}, {shaped(real, b, few)}, {shaped(t, b, m, left)}, "
        f"{shaped(t, b, right, n)}, s32[{b}])",
        f'custom_call_target="lapack_{letter}gesdd_ffi", api_version=API_VERSION_TYPED_FFI, '
        f"backend_config={{mode = {ord(mode)} : ui8}}",
        random=True,
    )  # fmt: skip


def orthogonal_factor(t: str, b: int = 2, m: int = 5, n: int = 3, k: int = 3) -> Instruction:
    """Return the orthogonal matrix of Householder vectors: all columns, or the first few."""
    letter = {"f32": "sor", "f64": "dor", "c64": "cun", "c128": "zun"}.get(t, "sor")
    return Instruction(
        "custom-call", (array(t, b, m, n, style="moderate"), array(t, b, k, style="moderate")),
        shaped(t, b, m, n),
        f'custom_call_target="lapack_{letter}gqr_ffi", api_version=API_VERSION_TYPED_FFI',
    )  # fmt: skip


def factored(t: str, routine: str = "geqrf", b: int = 2, m: int = 4, n: int = 3) -> Instruction:
    """Return a factorisation of rectangular matrices."""
    letter, few = _LETTER.get(t, "s"), min(m, n)
    whole = shaped(t, b, m, n)
    result = {
        "geqrf": f"({whole}, {shaped(t, b, few)})",
        "getrf": f"({whole}, s32[{b},{few}], s32[{b}])",
    }[routine]
    return Instruction(
        "custom-call", (array(t, b, m, n, style="moderate"),), result,
        f'custom_call_target="lapack_{letter}{routine}_ffi", api_version=API_VERSION_TYPED_FFI',
    )  # fmt: skip


def symmetric_values(t: str, b: int = 2, n: int = 3) -> Instruction:
    """Return eigenvalues and vectors of Hermitian matrices."""
    letter = {"f32": "ssy", "f64": "dsy", "c64": "che", "c128": "zhe"}.get(t, "ssy")
    whole = array(t, b, n, n, style="definite" if n else "whole")
    return Instruction(
        "custom-call", (whole,),
        f"({whole.shape}, {shaped(_REAL.get(t, t), b, n)}, s32[{b}])",
        f'custom_call_target="lapack_{letter}evd_ffi", api_version=API_VERSION_TYPED_FFI, '
        "backend_config={mode = 86 : ui8, uplo = 76 : ui8}",
        random=True,
    )  # fmt: skip


def moving_forms() -> Iterator[Form]:
    """Yield every form of this file."""
    yield from (broadcast, broadcast_scalar, iota, constant, transpose, reverse, slice_rows)
    yield from (pad, crop, concatenate, one_of_a_tuple, dimension_size, after_tokens, copied_later)
    for opcode in ("copy", "bitcast", "opt-barrier"):
        yield partial(unchanged, opcode=opcode)
    yield partial(reshape, opcode="reshape")
    yield partial(reshape, opcode="bitcast")
    for index in ("s32", "u8", "s64"):
        yield partial(dynamic_slice, index=index)
        yield partial(dynamic_update_slice, index=index)
        yield partial(gather_rows, index=index)
    yield from (gather_windows, gather_batched, scatter_batched, scatter_pairs)
    for combiner in COMBINERS:
        yield partial(scatter_rows, combiner=combiner)
        yield partial(scatter_windows, combiner=combiner)
        yield partial(scatter_points, combiner=combiner)
    yield partial(call, opcode="call")
    yield partial(call, opcode="fusion")
    yield from (loop, conditional, ragged_all_to_all, top_k_call)
    for opcode in (
        "all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-broadcast",
        "collective-permute",
    ):  # fmt: skip
        yield partial(collective, opcode=opcode)


def library_forms() -> Iterator[Form]:
    """Yield the forms of LAPACK's routines, which take few element types."""
    for mode in "ASN":
        yield partial(singular_values, mode=mode)
    yield from (orthogonal_factor, symmetric_values)
    for routine in ("geqrf", "getrf"):
        yield partial(factored, routine=routine)

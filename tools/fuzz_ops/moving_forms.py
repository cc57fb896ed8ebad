"""Forms of the ops that move elements, of control flow, collectives, and library calls."""

from collections.abc import Iterator

from tools.fuzz_ops.form import Form, Instruction, instruction, over
from tools.fuzz_ops.forms import COMBINERS, pair_region

_ROWS_GATHERED = "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}"
_ROWS_SCATTERED = (
    "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}"
)
_LETTER = {"f32": "s", "f64": "d", "c64": "c", "c128": "z"}
_REAL = {"c64": "f32", "c128": "f64"}


def broadcast(t: str, m: int = 2, n: int = 3, k: int = 4) -> Instruction:
    """Return an array along new dimensions."""
    return instruction(f"{t}[{m},{n},{k}] broadcast({t}[{n}]), dimensions={{1}}")


def broadcast_scalar(t: str, m: int = 2, n: int = 3) -> Instruction:
    """Return a scalar everywhere."""
    return instruction(f"{t}[{m},{n}] broadcast({t}[]), dimensions={{}}")


def iota(t: str, m: int = 2, n: int = 3) -> Instruction:
    """Return counted elements."""
    return instruction(f"{t}[{m},{n}] iota(), iota_dimension=1")


def constant(t: str, m: int = 2, n: int = 3) -> Instruction:
    """Return written elements."""
    one = "(1, 0)" if t in _REAL else "1"
    line = "{" + ", ".join([one] * n) + "}"
    return instruction(f"{t}[{m},{n}] constant()", operands="{" + ", ".join([line] * m) + "}")


def unchanged(t: str, opcode: str = "copy", m: int = 2, n: int = 3) -> Instruction:
    """Return an op that hands its operand on."""
    return instruction(f"{t}[{m},{n}] {opcode}({t}[{m},{n}])")


def reshape(t: str, opcode: str = "reshape", m: int = 2, n: int = 3, k: int = 4) -> Instruction:
    """Return two dimensions as one."""
    return instruction(f"{t}[{m * n},{k}] {opcode}({t}[{m},{n},{k}])")


def transpose(t: str, m: int = 2, n: int = 3, k: int = 4) -> Instruction:
    """Return dimensions in another order."""
    return instruction(f"{t}[{k},{m},{n}] transpose({t}[{m},{n},{k}]), dimensions={{2,0,1}}")


def reverse(t: str, m: int = 2, n: int = 3) -> Instruction:
    """Return one dimension backwards."""
    return instruction(f"{t}[{m},{n}] reverse({t}[{m},{n}]), dimensions={{1}}")


def slice_rows(t: str, m: int = 3, n: int = 7, k: int = 3) -> Instruction:
    """Return every second element, from the first on."""
    text = f"{t}[{m},{k}] slice({t}[{m},{max(n, 2 * k)}])"
    return instruction(f"{text}, slice={{[0:{m}], [0:{2 * k}:2]}}")


def pad(t: str, m: int = 2, n: int = 3, low: int = 1, inner: int = 2) -> Instruction:
    """Return borders, and gaps between elements."""
    size = max(0, n + max(0, n - 1) * inner + low)
    return instruction(f"{t}[{m},{size}] pad({t}[{m},{n}], {t}[]), padding=0_0x{low}_0_{inner}")


def crop(t: str, m: int = 2, n: int = 4, k: int = 1) -> Instruction:
    """Return negative borders."""
    size = max(n, k)
    return instruction(f"{t}[{m},{size - k}] pad({t}[{m},{size}], {t}[]), padding=0_0x0_-{k}")


def concatenate(t: str, m: int = 2, n: int = 3, k: int = 4) -> Instruction:
    """Return two arrays one after the other."""
    text = f"{t}[{m},{n + k}] concatenate({t}[{m},{n}], {t}[{m},{k}])"
    return instruction(f"{text}, dimensions={{1}}")


def dynamic_slice(t: str, index: str = "s32", m: int = 3, n: int = 5, k: int = 2) -> Instruction:
    """Return a window at a place known while running."""
    start = f"{index}[] indices:{n}"
    text = f"{t}[{m},{k}] dynamic-slice({t}[{m},{n}], {start}, {start})"
    return instruction(f"{text}, dynamic_slice_sizes={{{m},{k}}}")


def dynamic_update_slice(
    t: str, index: str = "s32", m: int = 3, n: int = 5, k: int = 2
) -> Instruction:
    """Return a window written at a place known while running."""
    whole, start = f"{t}[{m},{n}]", f"{index}[] indices:{n}"
    return instruction(f"{whole} dynamic-update-slice({whole}, {t}[{m},{k}], {start}, {start})")


def gather_rows(
    t: str, index: str = "s32", m: int = 6, n: int = 4, count: int = 3, window: int = 4
) -> Instruction:
    """Return rows of a matrix, or parts of them."""
    text = f"{t}[{count},{window}] gather({t}[{m},{n}], {index}[{count}] indices:{m})"
    sizes = f"slice_sizes={{1,{window}}}"
    return instruction(f"{text}, {_ROWS_GATHERED}, index_vector_dim=1, {sizes}")


def gather_windows(
    t: str, m: int = 4, n: int = 5, count: int = 3, coordinates: int = 2, window: int = 2
) -> Instruction:
    """Return windows of a matrix; without coordinates all of them begin at zero."""
    starts = "start_index_map={0,1}" if coordinates else "start_index_map={}"
    operands = f"{t}[{m},{n}], s32[{count},{coordinates}] indices:4"
    return instruction(
        f"{t}[{count},{window},{window}] gather({operands}), offset_dims={{1,2}}, "
        f"collapsed_slice_dims={{}}, {starts}, index_vector_dim=1, "
        f"slice_sizes={{{window},{window}}}"
    )


def gather_batched(t: str, b: int = 2, m: int = 4, n: int = 3, count: int = 2) -> Instruction:
    """Return rows of each matrix of a batch."""
    return instruction(
        f"{t}[{b},{count},{n}] gather({t}[{b},{m},{n}], s32[{b},{count},1] indices:{m}), "
        "offset_dims={2}, collapsed_slice_dims={1}, start_index_map={1}, "
        "operand_batching_dims={0}, start_indices_batching_dims={0}, index_vector_dim=2, "
        f"slice_sizes={{1,1,{n}}}"
    )


def scatter_rows(
    t: str, combiner: str = "add", m: int = 6, n: int = 4, count: int = 3, window: int = 4
) -> Instruction:
    """Return rows combined into a matrix, or parts of them."""
    operands = f"{t}[{m},{n}], s32[{count}] indices:{m}, {t}[{count},{window}]"
    text = f"{t}[{m},{n}] scatter({operands})"
    return instruction(f"{text}, {_ROWS_SCATTERED}, index_vector_dim=1, to_apply={combiner}.{t}")


def scatter_windows(
    t: str, combiner: str = "add", m: int = 4, n: int = 5, count: int = 3, coordinates: int = 2,
    window: int = 2,
) -> Instruction:  # fmt: skip
    """Return windows combined into a matrix; without coordinates all of them begin at zero."""
    places = "{0,1}" if coordinates else "{}"
    updates = f"s32[{count},{coordinates}] indices:4, {t}[{count},{window},{window}]"
    return instruction(
        f"{t}[{m},{n}] scatter({t}[{m},{n}], {updates}), update_window_dims={{1,2}}, "
        f"inserted_window_dims={{}}, scatter_dims_to_operand_dims={places}, index_vector_dim=1, "
        f"to_apply={combiner}.{t}"
    )


def scatter_points(
    t: str, combiner: str = "add", m: int = 5, count: int = 4, coordinates: int = 1
) -> Instruction:
    """Return single elements combined into a vector."""
    places = "{0}" if coordinates else "{}"
    return instruction(
        f"{t}[{m}] scatter({t}[{m}], s8[{coordinates},{count}] indices:{m}, {t}[{count}]), "
        "update_window_dims={}, inserted_window_dims={0}, "
        f"scatter_dims_to_operand_dims={places}, index_vector_dim=0, to_apply={combiner}.{t}"
    )


def scatter_batched(t: str, b: int = 2, m: int = 4, n: int = 3, count: int = 2) -> Instruction:
    """Return rows combined into each matrix of a batch."""
    whole, updates = f"{t}[{b},{m},{n}]", f"s32[{b},{count},1] indices:{m}, {t}[{b},{count},{n}]"
    return instruction(
        f"{whole} scatter({whole}, {updates}), update_window_dims={{2}}, "
        "inserted_window_dims={1}, scatter_dims_to_operand_dims={1}, input_batching_dims={0}, "
        f"scatter_indices_batching_dims={{0}}, index_vector_dim=2, to_apply=add.{t}"
    )


def scatter_pairs(t: str, m: int = 4, n: int = 3, count: int = 2) -> Instruction:
    """Return rows combined into two matrices at once."""
    both = f"{t}[{m},{n}], s32[{m},{n}]"
    updates = f"s32[{count},1] indices:{m}, {t}[{count},{n}], s32[{count},{n}]"
    text = f"({both}) scatter({both}, {updates})"
    attributes = f"{_ROWS_SCATTERED}, index_vector_dim=1, to_apply=combine"
    return instruction(f"{text}, {attributes}", pair_region(t))


def one_of_a_tuple(t: str, m: int = 2, n: int = 3) -> Instruction:
    """Return an element of a tuple."""
    a = f"{t}[{m},{n}]"
    before = f"  s = ({a}, s32[]) tuple(p0, p1)\n"
    text = f"{a} get-tuple-element({a}, s32[]), index=0"
    return instruction(text, before=before, operands="s")


def dimension_size(t: str, m: int = 2, n: int = 3) -> Instruction:
    """Return the size of a dimension."""
    return instruction(f"s32[] get-dimension-size({t}[{m},{n}]), dimensions={{1}}")


def after_tokens(t: str, m: int = 2, n: int = 3) -> Instruction:
    """Return an array that waits for a token."""
    text, before = f"{t}[{m},{n}] add-dependency({t}[{m},{n}])", "  k = token[] after-all()\n"
    return instruction(text, before=before, operands="p0, k")


def copied_later(t: str, m: int = 2, n: int = 3) -> Instruction:
    """Return a copy in two steps."""
    a = f"{t}[{m},{n}]"
    before = f"  s = ({a}, {a}, u32[]) copy-start(p0)\n"
    return instruction(f"{a} copy-done({a})", before=before, operands="s")


def call(t: str, opcode: str = "call", m: int = 2, n: int = 3) -> Instruction:
    """Return a call or a fusion."""
    a = f"{t}[{m},{n}]"
    called = "to_apply=f" if opcode == "call" else "kind=kLoop, calls=f"
    region = (
        f"f {{\n  a = {a} parameter(0)\n  b = {a} parameter(1)\n  ROOT c = {a} add(a, b)\n}}\n\n"
    )
    return instruction(f"{a} {opcode}({a}, {a}), {called}", region)


def loop(t: str, trips: int = 3, m: int = 2, n: int = 3) -> Instruction:
    """Return a counted loop that fills rows of an array, as JAX prints a scan."""
    rows, line = f"{t}[{trips},{m},{n}]", f"{t}[{m},{n}]"
    state = f"(s32[], {line}, {rows})"
    regions = (
        f"body {{\n  s = {state} parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n"
        f"  a = {line} get-tuple-element(s), index=1\n"
        f"  ys = {rows} get-tuple-element(s), index=2\n  z = s32[] constant(0)\n"
        f"  one = s32[] constant(1)\n  c = {line} add(a, a)\n"
        f"  y = {t}[1,{m},{n}] reshape(c)\n"
        f"  zs = {rows} dynamic-update-slice(ys, y, i, z, z)\n  j = s32[] add(i, one)\n"
        f"  ROOT t = {state} tuple(j, c, zs)\n}}\n\n"
        f"condition {{\n  s = {state} parameter(0)\n"
        f"  i = s32[] get-tuple-element(s), index=0\n  n = s32[] constant({trips})\n"
        f"  ROOT c = pred[] compare(i, n), direction=LT\n}}\n\n"
    )
    before = f"  z = s32[] constant(0)\n  s = {state} tuple(z, p0, p1)\n"
    text = f"{state} while({line}, {rows}), condition=condition, body=body"
    return instruction(text, regions, before, "s")


def conditional(t: str, m: int = 2, n: int = 3) -> Instruction:
    """Return one of two branches."""
    a = f"{t}[{m},{n}]"
    regions = "".join(
        f"f{number} {{\n  a = {a} parameter(0)\n  ROOT b = {a} {op}\n}}\n\n"
        for number, op in enumerate(("add(a, a)", "copy(a)"))
    )
    text = f"{a} conditional(pred[], {a}, {a}), true_computation=f0, false_computation=f1"
    return instruction(text, regions)


COLLECTIVES = {
    "all-reduce": "replica_groups={{0}}, to_apply=add.",
    "reduce-scatter": "replica_groups={{0}}, dimensions={1}, to_apply=add.",
    "all-gather": "replica_groups={{0}}, dimensions={1}",
    "all-to-all": "replica_groups={{0}}, dimensions={1}",
    "collective-broadcast": "replica_groups={{0}}",
    "collective-permute": "source_target_pairs={{0,0}}",
}


def collective(t: str, opcode: str = "all-reduce", m: int = 2, n: int = 3) -> Instruction:
    """Return a collective of one participant."""
    attributes = COLLECTIVES[opcode] + (t if COLLECTIVES[opcode].endswith(".") else "")
    return instruction(f"{t}[{m},{n}] {opcode}({t}[{m},{n}]), {attributes}")


def ragged_all_to_all(t: str, m: int = 4, n: int = 3, count: int = 1) -> Instruction:
    """Return rows by groups of different lengths, of one participant."""
    a = f"{t}[{m},{n}]"
    operands = ", ".join([a, a, *[f"s64[{count}] zeros"] * 4])
    return instruction(f"{a} ragged-all-to-all({operands}), replica_groups={{{{0}}}}")


def _library(text: str, routine: str, config: str = "", *, random: bool = False) -> Instruction:
    target = f'custom_call_target="lapack_{routine}_ffi", api_version=API_VERSION_TYPED_FFI'
    tail = f", backend_config={{{config}}}" if config else ""
    return instruction(f"{text}, {target}{tail}", random=random)


def singular_values(t: str, mode: str = "A", b: int = 2, m: int = 4, n: int = 3) -> Instruction:
    """Return singular values, with all vectors, the first few, or none."""
    letter, real, few = _LETTER.get(t, "s"), _REAL.get(t, t), min(m, n)
    left, right = (m, n) if mode == "A" else (few, few)
    text = (
        f"({t}[{b},{m},{n}], {real}[{b},{few}], {t}[{b},{m},{left}], {t}[{b},{right},{n}], "
        f"s32[{b}]) custom-call({t}[{b},{m},{n}] moderate)"
    )
    return _library(text, f"{letter}gesdd", f"mode = {ord(mode)} : ui8", random=True)


def orthogonal_factor(t: str, b: int = 2, m: int = 5, n: int = 3, k: int = 3) -> Instruction:
    """Return the orthogonal matrix of Householder vectors: all columns, or the first few."""
    letter = {"f32": "sor", "f64": "dor", "c64": "cun", "c128": "zun"}.get(t, "sor")
    whole = f"{t}[{b},{m},{n}]"
    return _library(f"{whole} custom-call({whole} moderate, {t}[{b},{k}] moderate)", f"{letter}gqr")


def factored(t: str, routine: str = "geqrf", b: int = 2, m: int = 4, n: int = 3) -> Instruction:
    """Return a factorisation of rectangular matrices."""
    few, whole = min(m, n), f"{t}[{b},{m},{n}]"
    rest = f"{t}[{b},{few}]" if routine == "geqrf" else f"s32[{b},{few}], s32[{b}]"
    text = f"({whole}, {rest}) custom-call({whole} moderate)"
    return _library(text, f"{_LETTER.get(t, 's')}{routine}")


def symmetric_values(t: str, b: int = 2, n: int = 3) -> Instruction:
    """Return eigenvalues and vectors of Hermitian matrices."""
    letter = {"f32": "ssy", "f64": "dsy", "c64": "che", "c128": "zhe"}.get(t, "ssy")
    whole, style = f"{t}[{b},{n},{n}]", "definite" if n else "whole"
    text = f"({whole}, {_REAL.get(t, t)}[{b},{n}], s32[{b}]) custom-call({whole} {style})"
    return _library(text, f"{letter}evd", "mode = 86 : ui8, uplo = 76 : ui8", random=True)


def moving_forms() -> Iterator[Form]:
    """Yield every form of this file."""
    yield from (broadcast, broadcast_scalar, iota, constant, transpose, reverse, slice_rows)
    yield from (pad, crop, concatenate, one_of_a_tuple, dimension_size, after_tokens, copied_later)
    yield from over(unchanged, opcode=("copy", "bitcast", "opt-barrier"))
    yield from over(reshape, opcode=("reshape", "bitcast"))
    for indexed in (dynamic_slice, dynamic_update_slice, gather_rows):
        yield from over(indexed, index=("s32", "u8", "s64"))
    yield from (gather_windows, gather_batched, scatter_batched, scatter_pairs)
    for scatter in (scatter_rows, scatter_windows, scatter_points):
        yield from over(scatter, combiner=COMBINERS)
    yield from over(call, opcode=("call", "fusion"))
    yield from (loop, conditional, ragged_all_to_all)
    yield from over(collective, opcode=tuple(COLLECTIVES))


def library_forms() -> Iterator[Form]:
    """Yield the forms of LAPACK's routines, which take few element types."""
    yield from over(singular_values, mode=tuple("ASN"))
    yield from (orthogonal_factor, symmetric_values)
    yield from over(factored, routine=("geqrf", "getrf"))

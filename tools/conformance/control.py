"""Cases of calls, loops, branches, fusions, asynchronous pairs, tokens and custom calls."""

from collections.abc import Iterator

from tools.conformance.case import Case, Dimensions, Input, module_text, of_one_op, shape_text
from tools.conformance.types import ALL, ARITHMETIC, FLOATS

SHAPES: tuple[Dimensions, ...] = ((), (5,), (0, 3), (2, 1, 3, 2, 3))


ONE_TYPE = ("f32",)
"""The type of cases that jaxlib's route through StableHLO is known not to carry."""


def add_region(name: str, element_type: str, sizes: Dimensions, opcode: str = "add") -> str:
    """Return a computation of two arrays that is one op."""
    shape = shape_text(element_type, sizes)
    return (
        f"{name} {{\n  a = {shape} parameter(0)\n  b = {shape} parameter(1)\n"
        f"  ROOT c = {shape} {opcode}(a, b)\n}}\n\n"
    )


def pair_region(name: str, element_type: str, sizes: Dimensions) -> str:
    """Return a computation of one array that returns two."""
    shape = shape_text(element_type, sizes)
    return (
        f"{name} {{\n  a = {shape} parameter(0)\n  b = {shape} add(a, a)\n"
        f"  ROOT t = ({shape}, {shape}) tuple(b, a)\n}}\n\n"
    )


def call_cases() -> Iterator[Case]:
    """Yield calls, fusions of every kind and asynchronous calls."""
    for t in ARITHMETIC:
        for sizes in SHAPES:
            x = Input(t, sizes)
            both = f"({x.shape}, {x.shape})"
            region, pair = add_region("f", t, sizes), pair_region("g", t, sizes)
            yield of_one_op("call", [x, x], x.shape, "to_apply=f", regions=region)
            yield of_one_op("call", [x], both, "to_apply=g", regions=pair, variant="two results")
            # XLA:CPU takes kOutput for dots and kCustom for library calls; it has no kInput.
            kinds = ("kLoop", "kInput", "kOutput", "kCustom") if t in ONE_TYPE else ("kLoop",)
            for kind in kinds if sizes == (5,) else kinds[:1]:
                tail = f"kind={kind}, calls="
                yield of_one_op("fusion", [x, x], x.shape, tail + "f", regions=region, variant=kind)
            if t not in ONE_TYPE or sizes != (5,):
                continue  # what follows shows only that the route does not carry it
            yield of_one_op("fusion", [x], both, "kind=kLoop, calls=g", regions=pair,
                            variant="two results")  # fmt: skip
            before = (
                f"  s = (({x.shape}, {x.shape}), {x.shape}) async-start(p0, p1), calls=f\n"
                f"  u = (({x.shape}, {x.shape}), {x.shape}) async-update(s)"
            )
            text = module_text([x, x], f"{x.shape} async-done(u)", region, before)
            yield Case("async-start", t, x.shape, text, (x, x))


def while_cases() -> Iterator[Case]:
    """Yield loops: counted, data-dependent, never entered, nested."""
    for t in ARITHMETIC:
        for sizes in SHAPES:
            x = Input(t, sizes, "moderate")
            state = f"(s32[], {x.shape}, {x.shape})"
            body = (
                f"body {{\n  s = {state} parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n"
                f"  a = {x.shape} get-tuple-element(s), index=1\n"
                f"  b = {x.shape} get-tuple-element(s), index=2\n  one = s32[] constant(1)\n"
                f"  j = s32[] add(i, one)\n  c = {x.shape} add(a, b)\n"
                f"  ROOT t = {state} tuple(j, b, c)\n}}\n\n"
            )
            for trips in (0, 1, 7):
                condition = (
                    f"condition {{\n  s = {state} parameter(0)\n"
                    f"  i = s32[] get-tuple-element(s), index=0\n  n = s32[] constant({trips})\n"
                    f"  ROOT c = pred[] compare(i, n), direction=LT\n}}\n\n"
                )
                before = f"  z = s32[] constant(0)\n  s = {state} tuple(z, p0, p1)"
                text = module_text(
                    [x, x], f"{state} while(s), condition=condition, body=body", body + condition,
                    before,
                )  # fmt: skip
                yield Case("while", t, f"{trips} trips {x.shape}", text, (x, x))
    for t in ("s32", "u64", "s8"):
        x = Input(t, (), "edges")
        shape = f"({t}[], s32[])"
        regions = (
            f"body {{\n  s = {shape} parameter(0)\n  x = {t}[] get-tuple-element(s), index=0\n"
            f"  i = s32[] get-tuple-element(s), index=1\n  two = {t}[] constant(2)\n"
            f"  one = s32[] constant(1)\n  y = {t}[] divide(x, two)\n  j = s32[] add(i, one)\n"
            f"  ROOT t = {shape} tuple(y, j)\n}}\n\n"
            f"condition {{\n  s = {shape} parameter(0)\n"
            f"  x = {t}[] get-tuple-element(s), index=0\n  z = {t}[] constant(0)\n"
            f"  ROOT c = pred[] compare(x, z), direction=NE\n}}\n\n"
        )
        text = module_text([x], f"{shape} while(s), condition=condition, body=body", regions,
                           f"  z = s32[] constant(0)\n  s = {shape} tuple(p0, z)")  # fmt: skip
        yield Case("while", t, "until zero", text, (x,))


def conditional_cases() -> Iterator[Case]:
    """Yield branches on predicates and on indices beyond both ends."""
    for t in ARITHMETIC:
        for sizes in SHAPES:
            x = Input(t, sizes)
            regions = "".join(
                f"f{n} {{\n  a = {x.shape} parameter(0)\n  ROOT b = {x.shape} {op}\n}}\n\n"
                for n, op in enumerate(("add(a, a)", "multiply(a, a)", "copy(a)"))
            )
            for number in range(2):
                yield of_one_op(
                    "conditional", [Input("pred", (), "edges"), x, x], x.shape,
                    "true_computation=f0, false_computation=f1", element_type=t,
                    variant=f"predicate {number}", regions=regions,
                )  # fmt: skip
            for number in range(3):
                yield of_one_op(
                    "conditional", [Input("s32", (), "indices", 3), x, x, x], x.shape,
                    "branch_computations={f0, f1, f2}", element_type=t, variant=f"index {number}",
                    regions=regions,
                )  # fmt: skip


def token_cases() -> Iterator[Case]:
    """Yield what orders effects without changing values."""
    for t in ALL:
        x = Input(t, (3,))
        before = "  k = token[] after-all()\n  l = token[] after-all(k, k)"
        text = module_text([x], f"{x.shape} add-dependency(p0, l)", before=before)
        yield Case("add-dependency", t, "after-all", text, (x,))
        both = f"({x.shape}, {x.shape})"
        yield of_one_op("opt-barrier", [x], x.shape, variant="array")
        text = module_text([x, x], f"{both} opt-barrier(t)", before=f"  t = {both} tuple(p0, p1)")
        yield Case("opt-barrier", t, "tuple", text, (x, x))
        for target in ("Sharding", "annotate_device_placement"):
            yield of_one_op(
                "custom-call", [x], x.shape,
                f'custom_call_target="{target}", sharding={{replicated}}', variant=target,
            )  # fmt: skip
        if t not in ONE_TYPE:
            continue
        text = module_text(
            [x], f"{x.shape} copy-done(s)",
            before=f"  s = ({x.shape}, {x.shape}, u32[]) copy-start(p0)",
        )  # fmt: skip
        yield Case("copy-start", t, "pair", text, (x,))


def custom_call_cases() -> Iterator[Case]:
    """Yield custom calls of JAX's CPU dumps."""
    for t in ONE_TYPE:
        for sizes, k in (((9,), 3), ((2, 17), 5), ((2, 17), 1)):
            target = (*sizes[:-1], k)
            yield of_one_op(
                "custom-call", [Input(t, sizes, "moderate")],
                f"({shape_text(t, target)}, {shape_text('s32', target)})",
                'custom_call_target="TopK"', variant=f"TopK {k}",
            )  # fmt: skip


def stream_cases() -> Iterator[Case]:
    """Yield longer dataflow: a scan in a loop, as JAX prints it."""
    for t in FLOATS:
        for length, width in ((5, 3), (1, 7), (4, 1)):
            rows, row = shape_text(t, (length, width)), shape_text(t, (width,))
            state = f"(s32[], {row}, {rows}, {rows})"
            regions = (
                f"body {{\n  s = {state} parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n"
                f"  c = {row} get-tuple-element(s), index=1\n"
                f"  xs = {rows} get-tuple-element(s), index=2\n"
                f"  ys = {rows} get-tuple-element(s), index=3\n  z = s32[] constant(0)\n"
                f"  one = s32[] constant(1)\n"
                f"  x = {shape_text(t, (1, width))} dynamic-slice(xs, i, z), "
                f"dynamic_slice_sizes={{1,{width}}}\n  x1 = {row} reshape(x)\n"
                f"  d = {row} add(c, x1)\n  y = {shape_text(t, (1, width))} reshape(d)\n"
                f"  zs = {rows} dynamic-update-slice(ys, y, i, z)\n  j = s32[] add(i, one)\n"
                f"  ROOT t = {state} tuple(j, d, xs, zs)\n}}\n\n"
                f"condition {{\n  s = {state} parameter(0)\n"
                f"  i = s32[] get-tuple-element(s), index=0\n  n = s32[] constant({length})\n"
                f"  ROOT c = pred[] compare(i, n), direction=LT\n}}\n\n"
            )
            inputs = (Input(t, (width,), "moderate"), Input(t, (length, width), "moderate"))
            text = module_text(
                inputs, f"{state} while(s), condition=condition, body=body", regions,
                f"  z = s32[] constant(0)\n  s = {state} tuple(z, p0, p1, p1)",
            )  # fmt: skip
            yield Case("while", t, f"scan {length}x{width}", text, inputs)


def cases() -> Iterator[Case]:
    """Yield all cases of this family."""
    yield from call_cases()
    yield from while_cases()
    yield from conditional_cases()
    yield from token_cases()
    yield from custom_call_cases()
    yield from stream_cases()

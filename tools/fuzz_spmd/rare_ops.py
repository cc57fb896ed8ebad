"""Ops of random chains that few programs have: grouped products, norms, matrices, random bits."""

from tools.fuzz_spmd.chain import Chain, Op, listed, shape_of


def _typed(kind: str, sizes: tuple[int, ...]) -> str:
    return f"{kind}{shape_of(sizes)[3:]}"


def _ragged(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    """Multiply rows in groups, each by its own matrix; or sum the products of each group."""
    if len(sizes) < 2 or len(sizes) > 3:
        return
    draw, name = c.draws, f"g{len(c.lines)}"
    batch, (m, k) = sizes[:-2], sizes[-2:]
    groups, n = draw.randint(1, 4), draw.choice((2, 3, 4, 6))
    which = draw.choice(("rows", "contracted", "batch")) if not batch else "rows"
    total = {"rows": m, "contracted": m, "batch": m}[which]
    cuts = sorted(draw.randint(0, total) for _ in range(groups))
    counts = [high - low for low, high in zip([0, *cuts], cuts, strict=False)]
    both = ", ".join(f"{side}_batch_dims={{{i}}}" for side, i in (("lhs", 0), ("rhs", 1)))
    if which == "rows":
        w = c.parameter((groups, *batch, k, n), goes_on=False)
        along = len(batch) + 1
        dims = f"lhs_contracting_dims={{{along}}}, rhs_contracting_dims={{{along}}}, "
        dims += f"lhs_ragged_dims={{{len(batch)}}}, rhs_group_dims={{0}}"
        dims += f", {both}" if batch else ""
        result = (*batch, m, n)
    elif which == "contracted":
        w = c.parameter((m, n), goes_on=False)
        dims = "lhs_contracting_dims={0}, rhs_contracting_dims={0}, lhs_ragged_dims={0}, "
        dims += "rhs_group_dims={}"
        result = (groups, k, n)
    else:
        w = c.parameter((m, k, n), goes_on=False)
        dims = "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={1}, "
        dims += "rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={}"
        result = (m, n)
    if w:
        shape = f"{batch[0]},{groups}" if batch and draw.random() < 0.5 else f"{groups}"
        said = listed([listed(counts)] * batch[0]) if "," in shape else listed(counts)
        c.lines.append(f"{name} = s32[{shape}] constant({said})")
        c.add(f"ragged-dot({a}, {w}, {name}), {dims}", result)


def _scaled(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    """Multiply what has a scale for each block of the contracted dimension."""
    if len(sizes) != 2:
        return
    (m, k), n, name = sizes, c.draws.choice((2, 3, 4, 6)), f"d{len(c.lines)}"
    blocks = c.draws.choice([b for b in range(1, k + 1) if k % b == 0])
    w = c.parameter((k, n), goes_on=False)
    if not w:
        return
    kinds = {"x": (a, (m, k)), "w": (w, (k, n))}
    c.lines += [f"{name}.{x} = {_typed('bf16', s)} convert({of})" for x, (of, s) in kinds.items()]
    for side, shape in (("s", (m, blocks)), ("t", (blocks, n))):
        rows = [[c.draws.choice((1, 2, 0.5)) for _ in range(shape[1])] for _ in range(shape[0])]
        text = listed([listed(row) for row in rows])
        c.lines.append(f"{name}.{side} = {_typed('bf16', shape)} constant({text})")
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    c.add(f"scaled-dot({name}.x, {name}.w, {name}.s, {name}.t), {dims}", (m, n))


def _norm(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    """Normalize along all but one dimension, as in training or not, or take the gradient."""
    if len(sizes) < 2:
        return
    d, name = c.draws.randrange(len(sizes)), f"b{len(c.lines)}"
    n = (sizes[d],)
    rows = [c.parameter(n, goes_on=False) for _ in range(4)]
    said = f"epsilon=0.01, feature_index={d}"
    c.lines.append(f"{name}.v = {shape_of(n)} exponential({rows[3]})")
    kind = c.draws.choice(("inference", "training", "grad"))
    if kind == "inference":
        operands = ", ".join((a, *rows[:3], f"{name}.v"))
        c.add(f"batch-norm-inference({operands}), {said}", sizes)
        return
    operands = f"{a}, {rows[0]}, {rows[1]}"
    if kind == "grad":
        others = [v for v, own in c.values if own == sizes]
        operands = f"{a}, {rows[0]}, {rows[1]}, {name}.v, {c.draws.choice(others)}"
    shapes = f"({shape_of(sizes)}, {shape_of(n)}, {shape_of(n)})"
    c.lines.append(f"{name} = {shapes} batch-norm-{kind}({operands}), {said}")
    leaf = c.draws.randint(0, 2)
    c.add(f"get-tuple-element({name}), index={leaf}", n if leaf else sizes)


def _positive(c: Chain, a: str, sizes: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Append a positive definite matrix for each of a batch of matrices."""
    name, (*batch, m, k) = f"k{len(c.lines)}", sizes
    square, rank = (*batch, m, m), len(sizes)
    dims = "".join(
        f"{side}_batch_dims={listed(range(rank - 2))}, {side}_contracting_dims={{{rank - 1}}}, "
        for side in ("lhs", "rhs")
    ).rstrip(", ")
    at = [
        f"{name}.{i} = {_typed('s32', square)} iota(), iota_dimension={d}"
        for i, d in (("i", rank - 2), ("j", rank - 1))
    ]
    c.lines += [
        f"{name}.t = {shape_of(sizes)} tanh({a})",
        f"{name}.g = {shape_of(square)} dot({name}.t, {name}.t), {dims}",
        *at,
        f"{name}.e = {_typed('pred', square)} compare({name}.i, {name}.j), direction=EQ",
        f"{name}.one = f32[] constant({k + 1})",
        f"{name}.n = {shape_of(square)} broadcast({name}.one), dimensions={{}}",
        f"{name}.z = {shape_of(square)} broadcast(zero), dimensions={{}}",
        f"{name}.d = {shape_of(square)} select({name}.e, {name}.n, {name}.z)",
        f"{name} = {shape_of(square)} add({name}.g, {name}.d)",
    ]
    return name, square


def _factor(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    """Take a triangular root of matrices, and often solve with it."""
    if len(sizes) < 2:
        return
    matrix, square = _positive(c, a, sizes)
    lower = c.draws.choice(("true", "false"))
    c.add(f"cholesky({matrix}), lower={lower}", square)
    root, own = c.values[-1]
    if own != square or c.draws.random() < 0.3:
        return
    left, n = c.draws.random() < 0.5, c.draws.choice((1, 2, 3, 6))
    rows = (*square[:-2], *((square[-1], n) if left else (n, square[-1])))
    b = c.parameter(rows, goes_on=False)
    if b:
        turned = c.draws.choice(("NO_TRANSPOSE", "TRANSPOSE"))
        said = f"left_side={str(left).lower()}, lower={lower}, transpose_a={turned}"
        unit = c.draws.choice(("true", "false"))
        c.add(f"triangular-solve({root}, {b}), {said}, unit_diagonal={unit}", rows)


_STATES = (("rng_default", 2), ("rng_three_fry", 2), ("rng_philox", 2), ("rng_philox", 3))


def _bits(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    """Add the high half of products of random bits, or round at random to f16."""
    name, dims = f"u{len(c.lines)}", ",".join(map(str, sizes))
    algorithm, length = c.draws.choice(_STATES)
    state = listed([c.draws.randrange(100) for _ in range(length)])
    c.lines += [
        f"{name}.state = u64[{length}] constant({state})",
        f"{name} = (u64[{length}], u32[{dims}]) rng-bit-generator({name}.state), "
        f"algorithm={algorithm}",
        f"{name}.bits = u32[{dims}] get-tuple-element({name}), index=1",
    ]
    if c.draws.random() < 0.2:
        c.lines.append(f"{name}.f = f16[{dims}] stochastic-convert({a}, {name}.bits)")
        c.add(f"convert({name}.f)", sizes)
        return
    c.lines += [
        f"{name}.high = u32[{dims}] mulhi({name}.bits, {name}.bits)",
        f"{name}.eight = u32[] constant(24)",
        f"{name}.shift = u32[{dims}] broadcast({name}.eight), dimensions={{}}",
        f"{name}.small = u32[{dims}] shift-right-logical({name}.high, {name}.shift)",
        f"{name}.number = f32[{dims}] convert({name}.small)",
    ]
    c.add(f"add({a}, {name}.number)", sizes)


def _stateless(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    name, kind = f"u{len(c.lines)}", c.draws.choice(("uniform", "normal"))
    c.lines.append(f"{name} = {shape_of(sizes)} rng(zero, half), distribution=rng_{kind}")
    c.add(f"add({a}, {name})", sizes)


def _complex(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    name = f"z{len(c.lines)}"
    b = c.draws.choice([v for v, own in c.values if own == sizes])
    c.lines += [
        f"{name} = {_typed('c64', sizes)} complex({a}, {b})",
        f"{name}.m = {_typed('c64', sizes)} multiply({name}, {name})",
    ]
    c.add(f"{c.draws.choice(('real', 'imag', 'abs'))}({name}.m)", sizes)


def _bound(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    """Clamp by scalars or arrays, round to fewer digits, or apply a computation."""
    b = c.draws.choice([v for v, own in c.values if own == sizes])
    number = len(c.lines)
    c.lines.append(f"w{number} = {shape_of(sizes)} broadcast(half), dimensions={{}}")
    c.called.append(f"""both{number} {{
  x = f32[] parameter(0)  y = f32[] parameter(1)  z = f32[] multiply(x, y)
  ROOT r = f32[] subtract(z, x)
}}
""")
    rank = listed(range(len(sizes)))
    said = c.draws.choice((
        f"clamp(zero, {a}, half)", f"clamp({b}, {a}, w{number})",
        f"map({a}, {b}), dimensions={rank}, to_apply=both{number}",
        f"reduce-precision({a}), exponent_bits=8, mantissa_bits=18",
    ))  # fmt: skip
    c.add(said, sizes)


def _sort_three(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    """Sort by one array, downwards, its places and another one with it."""
    d, number = c.draws.randrange(len(sizes)), len(c.lines)
    b = c.draws.choice([v for v, own in c.values if own == sizes])
    shapes = f"({shape_of(sizes)}, {_typed('s32', sizes)}, {shape_of(sizes)})"
    c.called.append(f"""more{number} {{
  a = f32[] parameter(0)  b = f32[] parameter(1)  i = s32[] parameter(2)  j = s32[] parameter(3)
  c = f32[] parameter(4)  d = f32[] parameter(5)
  ROOT r = pred[] compare(a, b), direction=GT
}}
""")
    c.lines += [
        f"i{number} = {_typed('s32', sizes)} iota(), iota_dimension={d}",
        f"s{number} = {shapes} sort({a}, i{number}, {b}), dimensions={{{d}}}, is_stable=true, "
        f"to_apply=more{number}",
        f"j{number} = {_typed('s32', sizes)} get-tuple-element(s{number}), index=1",
    ]
    leaf = c.draws.choice((0, 1, 2))
    said = f"convert(j{number})" if leaf == 1 else f"get-tuple-element(s{number}), index={leaf}"
    c.add(said, sizes)


RARE_OPS: tuple[Op, ...] = (
    _ragged, _ragged, _scaled, _norm, _norm, _factor, _factor, _bits, _bits, _stateless, _complex,
    _bound, _bound, _sort_three,
)  # fmt: skip

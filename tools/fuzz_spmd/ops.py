"""Ops of random chains: elementwise, moves, sums, slices, gathers, sorts, loops."""

from tools.fuzz_spmd.chain import SIZES, Chain, Op, listed, replaced, shape_of, without


def _apply(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    c.add(f"{c.draws.choice(('sine', 'tanh', 'negate'))}({a})", sizes)


def _both(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    others = [name for name, own in c.values if own == sizes]
    c.add(f"{c.draws.choice(('add', 'maximum', 'subtract'))}({a}, {c.draws.choice(others)})", sizes)


def _constrain(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    c.add(f'custom-call({a}), custom_call_target="Sharding", {c.stated(len(sizes))}', sizes)


def _transpose(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    order = c.draws.sample(range(len(sizes)), len(sizes))
    c.add(f"transpose({a}), dimensions={listed(order)}", tuple(sizes[i] for i in order))


def _reduce(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    d = c.draws.randrange(len(sizes))
    init, applied = c.draws.choice(("zero", "half")), c.draws.choice(("add", "maximum"))
    c.add(f"reduce({a}, {init}), dimensions={{{d}}}, to_apply={applied}", without(sizes, d))


def _broadcast(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    d = c.draws.randrange(len(sizes) + 1)
    result = (*sizes[:d], c.draws.choice(SIZES), *sizes[d:])
    kept = [i for i in range(len(result)) if i != d]
    c.add(f"broadcast({a}), dimensions={listed(kept)}", result)


def _reshape(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    d = c.draws.randrange(len(sizes))
    if d + 1 < len(sizes) and c.draws.random() < 0.5:
        c.add(f"reshape({a})", (*sizes[:d], sizes[d] * sizes[d + 1], *sizes[d + 2 :]))
    else:
        major = c.draws.choice([n for n in range(1, sizes[d] + 1) if sizes[d] % n == 0])
        c.add(f"reshape({a})", replaced(sizes, d, major, sizes[d] // major))


def _dot(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    shared = [(b, own) for b, own in c.values if set(own) & set(sizes)]
    b, own = c.draws.choice(shared)
    n = c.draws.choice(sorted(set(own) & set(sizes)))
    i, k = sizes.index(n), own.index(n)
    dims = f"lhs_contracting_dims={{{i}}}, rhs_contracting_dims={{{k}}}"
    c.add(f"dot({a}, {b}), {dims}", without(sizes, i) + without(own, k))


def _reverse(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    c.add(f"reverse({a}), dimensions={{{c.draws.randrange(len(sizes))}}}", sizes)


def _slice(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    d = c.draws.randrange(len(sizes))
    low = c.draws.randrange(sizes[d])
    high, step = c.draws.randint(low + 1, sizes[d]), c.draws.randint(1, 2)
    ranges = [f"[0:{n}]" for n in sizes]
    ranges[d] = f"[{low}:{high}:{step}]"
    c.add(
        f"slice({a}), slice={{{', '.join(ranges)}}}", replaced(sizes, d, -(-(high - low) // step))
    )


def _pad(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    d = c.draws.randrange(len(sizes))
    low, high, between = c.draws.randint(-1, 2), c.draws.randint(0, 2), c.draws.randint(0, 1)
    rows = ["0_0"] * len(sizes)
    rows[d] = f"{low}_{high}_{between}"
    n = sizes[d] + low + high + between * (sizes[d] - 1)
    c.add(f"pad({a}, half), padding={'x'.join(rows)}", replaced(sizes, d, n))


def _concatenate(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    d = c.draws.randrange(len(sizes))
    own = [v for v in c.values if len(v[1]) == len(sizes) and without(v[1], d) == without(sizes, d)]
    b, others = c.draws.choice(own)
    c.add(f"concatenate({a}, {b}), dimensions={{{d}}}", replaced(sizes, d, sizes[d] + others[d]))


def _window(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    d, n = c.draws.randrange(len(sizes)), 0
    n = sizes[d]
    size, pad = c.draws.choice([(n, f"{n - 1}_0"), (n, f"0_{n - 1}"), (min(3, n), "0_0")])
    windows, pads = ["1"] * len(sizes), ["0_0"] * len(sizes)
    windows[d], pads[d] = str(size), pad
    window = f"window={{size={'x'.join(windows)} pad={'x'.join(pads)}}}"
    result = n if pad != "0_0" or size == 1 else n - size + 1
    c.add(f"reduce-window({a}, zero), {window}, to_apply=add", replaced(sizes, d, result))


def _take(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    d, start = c.draws.randrange(len(sizes)), f"i{len(c.lines)}"
    count = c.draws.randint(1, sizes[d])
    c.lines.append(f"{start} = s32[] constant({c.draws.randint(0, sizes[d])})")
    c.lines.append(f"{start}.0 = s32[] constant(0)")
    starts = ", ".join(start if i == d else f"{start}.0" for i in range(len(sizes)))
    result = replaced(sizes, d, count)
    c.add(f"dynamic-slice({a}, {starts}), dynamic_slice_sizes={listed(result)}", result)


def _gather(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    d, name = c.draws.randrange(len(sizes)), f"i{len(c.lines)}"
    rows = [c.draws.randrange(sizes[d]) for _ in range(c.draws.choice(SIZES))]
    c.lines.append(f"{name} = s32[{len(rows)}] constant({listed(rows)})")
    kept = [i + 1 if i >= d else i for i in range(len(sizes) - 1)]
    offsets = [i + 1 for i in range(len(kept))]
    c.add(
        f"gather({a}, {name}), offset_dims={listed(offsets)}, collapsed_slice_dims={{{d}}}, "
        f"start_index_map={{{d}}}, index_vector_dim=1, "
        f"slice_sizes={listed(replaced(sizes, d, 1))}",
        (len(rows), *without(sizes, d)),
    )


def _take_along(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    if len(sizes) < 2:
        return
    i, j = c.draws.sample(range(len(sizes)), 2)
    rows, name = [c.draws.randrange(sizes[j]) for _ in range(3)], f"i{len(c.lines)}"
    shape = f"s32[{sizes[i]},3,1]"
    c.lines += [
        f"{name} = s32[3] constant({listed(rows)})",
        f"{name}.rows = {shape} broadcast({name}), dimensions={{1}}",
        f"{name}.batch = {shape} iota(), iota_dimension=0",
        f"{name}.both = s32[{sizes[i]},3,2] concatenate({name}.batch, {name}.rows), "
        "dimensions={2}",
    ]
    ones = replaced(replaced(sizes, i, 1), j, 1)
    rest = tuple(n for d, n in enumerate(sizes) if d not in (i, j))
    c.add(
        f"gather({a}, {name}.both), offset_dims={listed([d + 2 for d in range(len(rest))])}, "
        f"collapsed_slice_dims={listed(sorted((i, j)))}, start_index_map={listed((i, j))}, "
        f"index_vector_dim=2, slice_sizes={listed(ones)}",
        (sizes[i], 3, *rest),
    )


def _sort(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    d, result = c.draws.randrange(len(sizes)), f"s{len(c.lines)}"
    others = [name for name, own in c.values if own == sizes]
    both = f"({shape_of(sizes)}, {shape_of(sizes)})"
    c.lines.append(
        f"{result} = {both} sort({a}, {c.draws.choice(others)}), dimensions={{{d}}}, "
        "is_stable=true, to_apply=first_less"
    )
    c.add(f"get-tuple-element({result}), index={c.draws.randint(0, 1)}", sizes)


def _argmax(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    """Take the place of the greatest along a dimension, the first of equal ones."""
    d, name = c.draws.randrange(len(sizes)), f"m{len(c.lines)}"
    kept = without(sizes, d)
    c.lines += [
        f"{name}.least = f32[] constant(-inf)",
        f"{name}.none = s32[] constant(0)",
        f"{name}.at = s32[{','.join(map(str, sizes))}] iota(), iota_dimension={d}",
        f"{name} = ({shape_of(kept)}, s32[{','.join(map(str, kept))}]) reduce({a}, {name}.at, "
        f"{name}.least, {name}.none), dimensions={{{d}}}, to_apply=first_greatest",
    ]
    c.add(f"get-tuple-element({name}), index=0", kept)


def _put(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    """Write rows of another array into one."""
    fitting = [
        (name, own)
        for name, own in c.values
        if len(own) == len(sizes) and all(m <= n for m, n in zip(own, sizes, strict=True))
    ]
    b, _ = c.draws.choice(fitting)
    starts = []
    for n in sizes:
        starts.append(f"i{len(c.lines)}")
        c.lines.append(f"{starts[-1]} = s32[] constant({c.draws.randint(0, n)})")
    c.add(f"dynamic-update-slice({a}, {b}, {', '.join(starts)})", sizes)


def _loop(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    """Read an array that a loop does not change: one row a turn, or all of it."""
    number, rank = len(c.lines), len(sizes)
    b, own = c.draws.choice([v for v in c.values if len(v[1]) == rank])
    d = c.draws.randrange(rank)
    state = f"(s32[], {shape_of(sizes)}, {shape_of(own)})"
    row = replaced(own, d, 1)
    starts = ", ".join("i" if i == d else "none" for i in range(rank))
    kept = [i for i in range(rank) if i != d]
    c.called.append(f"""turn{number} {{
  s = {state} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = {shape_of(sizes)} get-tuple-element(s), index=1
  w = {shape_of(own)} get-tuple-element(s), index=2
  one = s32[] constant(1)
  none = s32[] constant(0)
  zero = f32[] constant(0)
  row = {shape_of(row)} dynamic-slice(w, {starts}), dynamic_slice_sizes={listed(row)}
  total = f32[] reduce(row, zero), dimensions={listed(range(rank))}, to_apply=add
  wide = {shape_of(sizes)} broadcast(total), dimensions={{}}
  y = {shape_of(sizes)} add(x, wide)
  z = {shape_of(sizes)} sine(y)
  next = s32[] add(i, one)
  ROOT r = {state} tuple(next, z, w)
}}
goes_on{number} {{
  s = {state} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  end = s32[] constant({own[d] + len(kept)})
  ROOT r = pred[] compare(i, end), direction=LT
}}
""")
    c.lines += [
        f"b{number} = s32[] constant(0)",
        f"g{number} = {state} tuple(b{number}, {a}, {b})",
        f"w{number} = {state} while(g{number}), condition=goes_on{number}, body=turn{number}",
    ]
    c.add(f"get-tuple-element(w{number}), index=1", sizes)


def _scan(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    if len(sizes) < 2:
        return
    d, number = c.draws.randrange(len(sizes)), len(c.lines)
    row = without(sizes, d)
    said = c.draws.choice(("add(x, c)", "subtract(x, c)", "maximum(x, c)"))
    c.called.append(f"""step{number} {{
  x = {shape_of(row)} parameter(0)
  c = {shape_of(row)} parameter(1)
  y = {shape_of(row)} {said}
  ROOT r = ({shape_of(row)}, {shape_of(row)}) tuple(y, y)
}}
""")
    c.lines += [
        f"h{number} = {shape_of(row)} broadcast(half), dimensions={{}}",
        f"n{number} = ({shape_of(sizes)}, {shape_of(row)}) scan({a}, h{number}), "
        f"dimensions={{{d}}}, num_carries=1, to_apply=step{number}, is_associative=false, "
        f"is_reverse={c.draws.choice(('true', 'false'))}",
    ]
    c.add(f"get-tuple-element(n{number}), index=0", sizes)


OPS: tuple[Op, ...] = (
    _apply, _both, _constrain, _transpose, _reduce, _broadcast, _reshape, _dot, _reverse, _slice,
    _pad, _concatenate, _window, _take, _gather, _take_along, _sort, _argmax, _put, _loop, _scan,
)  # fmt: skip

"""Ops of random chains: convolutions, scatters, top-k, FFTs, branches, random bits, regions."""

from tools.fuzz_spmd.chain import Chain, Op, listed, replaced, shape_of, without


def _convolve(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    """Multiply by a kernel of its own, at strides, dilated, reversed, in groups."""
    draw, rank = c.draws, len(sizes)
    if rank < 3:
        return
    letters = ["b", "f", *map(str, range(rank - 2))]
    draw.shuffle(letters)
    size = dict(zip(letters, sizes, strict=True))
    groups = draw.choice([g for g in (1, 1, 2, 3, size["f"]) if size["f"] % g == 0])
    batches = draw.choice([g for g in (1, 1, 2, 3) if groups == 1 and size["b"] % g == 0] or [1])
    kernel = {"i": size["f"] // groups, "o": groups * batches * draw.randint(1, 3)}
    result = {"b": size["b"] // batches, "f": kernel["o"]}
    words: dict[str, list[str]] = {
        key: [] for key in ("size", "stride", "pad", "lhs_dilate", "rhs_dilate", "rhs_reversal")
    }
    for d in map(str, range(rank - 2)):
        n, stride, apart, dilation = (draw.randint(1, most) for most in (3, 2, 2, 2))
        low, high = draw.randint(-1, n), draw.randint(-1, n)
        whole = (size[d] - 1) * apart + 1 + low + high
        left = whole - (n - 1) * dilation - 1
        if left < 0:
            return
        kernel[d], result[d] = n, left // stride + 1
        said = (n, stride, f"{low}_{high}", apart, dilation, draw.randint(0, 1))
        for key, word in zip(words, said, strict=True):
            words[key].append(str(word))
    taps, outs = list(kernel), list(result)
    draw.shuffle(taps)
    draw.shuffle(outs)
    w = c.parameter(tuple(kernel[x] for x in taps), goes_on=False)
    if w:
        window = " ".join(f"{key}={'x'.join(each)}" for key, each in words.items())
        c.add(
            f"convolution({a}, {w}), window={{{window}}}, "
            f"dim_labels={''.join(letters)}_{''.join(taps)}->{''.join(outs)}, "
            f"feature_group_count={groups}, batch_group_count={batches}",
            tuple(result[x] for x in outs),
        )


def _scatter(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    """Add rows, the greater of them, or rows that are written once."""
    d, name = c.draws.randrange(len(sizes)), f"i{len(c.lines)}"
    applied = c.draws.choice(("add", "maximum", "second"))
    many = c.draws.randint(1, 6)
    count = sizes[d] + 2  # Two are out of bounds, and dropped.
    rows = c.draws.choices(range(count), k=many)
    if applied == "second":
        rows = c.draws.sample(range(count), min(many, count))
    updates = c.parameter((len(rows), *without(sizes, d)), goes_on=False)
    if updates:
        c.lines.append(f"{name} = s32[{len(rows)}] constant({listed(rows)})")
        c.add(
            f"scatter({a}, {name}, {updates}), inserted_window_dims={{{d}}}, "
            f"update_window_dims={listed(range(1, len(sizes)))}, "
            f"scatter_dims_to_operand_dims={{{d}}}, index_vector_dim=1, to_apply={applied}",
            sizes,
        )


def _top_k(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    name, k = f"t{len(c.lines)}", c.draws.randint(1, sizes[-1])
    result = (*sizes[:-1], k)
    shapes = f"({shape_of(result)}, s32[{','.join(map(str, result))}])"
    c.lines.append(f"{name} = {shapes} topk({a}), k={k}, largest=true")
    c.add(f"get-tuple-element({name}), index=0", result)


def _spectrum(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    name, result = f"z{len(c.lines)}", (*sizes[:-1], sizes[-1] // 2 + 1)
    c.lines.append(
        f"{name} = c64[{','.join(map(str, result))}] fft({a}), fft_type=RFFT, "
        f"fft_length={{{sizes[-1]}}}"
    )
    c.add(f"real({name})", result)


def _branch(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    """Take a branch by the sign of one element; the branches divide what they read unlike."""
    number, shape = len(c.lines), shape_of(sizes)
    stated = c.stated(len(sizes))
    c.called.append(f"""yes{number} {{
  x = {shape} parameter(0)
  y = {shape} custom-call(x), custom_call_target="Sharding", {stated}
  ROOT r = {shape} sine(y)
}}
no{number} {{
  x = {shape} parameter(0)
  ROOT r = {shape} negate(x)
}}
""")
    first = ", ".join("[0:1]" for _ in sizes)
    ones = shape_of(tuple(1 for _ in sizes))
    c.lines += [
        f"e{number} = {ones} slice({a}), slice={{{first}}}",
        f"s{number} = f32[] reshape(e{number})",
        f"q{number} = pred[] compare(s{number}, zero), direction=GT",
    ]
    c.add(
        f"conditional(q{number}, {a}, {a}), true_computation=yes{number}, "
        f"false_computation=no{number}",
        sizes,
    )


def _random(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    name, dims = f"u{len(c.lines)}", ",".join(map(str, sizes))
    c.lines += [
        f"{name}.state = u64[2] constant({{1, 2}})",
        f"{name} = (u64[2], u32[{dims}]) rng-bit-generator({name}.state), algorithm=rng_three_fry",
        f"{name}.bits = u32[{dims}] get-tuple-element({name}), index=1",
        f"{name}.eight = u32[] constant(24)",
        f"{name}.shift = u32[{dims}] broadcast({name}.eight), dimensions={{}}",
        f"{name}.small = u32[{dims}] shift-right-logical({name}.bits, {name}.shift)",
        f"{name}.number = f32[{dims}] convert({name}.small)",
    ]
    c.add(f"add({a}, {name}.number)", sizes)


def _region(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    """Work on blocks along one axis, which meet or do not, and leave the others to propagation."""
    axis = c.draws.randrange(len(c.mesh))
    n, name = c.mesh[axis], "xyz"[axis]
    fitting = [d for d, size in enumerate(sizes) if size % n == 0]
    if not fitting:
        return
    d, number = c.draws.choice(fitting), len(c.lines)
    block = shape_of(replaced(sizes, d, sizes[d] // n))
    divided = [f'\\"{name}\\", ?' if k == d else "?" for k in range(len(sizes))]
    groups = c.groups(axis)
    meeting = c.draws.choice(("none", "sum", "gather", "turn", "scatter", "swap"))
    kept, inner, result = divided, block, sizes
    said = f"channel_id={number + 1}, replica_groups={groups}, use_global_device_ids=true"
    met = f"sine(l{number})"
    if meeting == "sum":
        kept, result = ["?"] * len(sizes), replaced(sizes, d, sizes[d] // n)
        met = f"all-reduce(l{number}), {said}, to_apply=add"
    elif meeting == "gather":
        kept, inner = ["?"] * len(sizes), shape_of(sizes)
        met = f"all-gather(l{number}), {said}, dimensions={{{d}}}"
    elif meeting == "scatter":
        rows = [e for e, size in enumerate(sizes) if (size // n if e == d else size) % n == 0]
        if not rows:
            return
        e = c.draws.choice(rows)
        blocks = replaced(sizes, d, sizes[d] // n)
        kept = [f'\\"{name}\\", ?' if k == e else "?" for k in range(len(sizes))]
        inner, result = shape_of(replaced(blocks, e, blocks[e] // n)), blocks
        met = f"reduce-scatter(l{number}), {said}, dimensions={{{e}}}, to_apply=add"
    elif meeting == "swap" and sizes[d] // n % n == 0:
        met = f"all-to-all(l{number}), {said}, dimensions={{{d}}}".replace(
            ", use_global_device_ids=true", ""
        )
    elif meeting == "turn":
        pairs = c.turned(axis)
        met = f"collective-permute(l{number}), channel_id={number + 1}, source_target_pairs={pairs}"
    c.lines += [
        f"l{number} = {block} custom-call({a}), {_border('in', divided, name)}",
        f"m{number} = {inner} {met}",
    ]
    c.add(f"custom-call(m{number}), {_border('out', kept, name)}", result)


def _border(side: str, dimensions: list[str], axis: str) -> str:
    """Return the attributes of a call where a region begins or ends."""
    target = {"in": "GlobalToLocal", "out": "LocalToGlobal"}[side]
    each = ", ".join(f"{{{d}}}" for d in dimensions)
    return (
        f'custom_call_target="xla.sdy.{target}Shape", custom_call_has_side_effect=true, '
        f'frontend_attributes={{xla.sdy.{side}_shardings="#sdy.sharding_per_value<[<@mesh, '
        f'[{each}]>]>",xla.sdy.manual_axes="#sdy<manual_axes{{\\"{axis}\\"}}>"}}'
    )


WIDE_OPS: tuple[Op, ...] = (
    _convolve, _convolve, _scatter, _top_k, _spectrum, _branch, _random, *(_region,) * 5,
)  # fmt: skip

"""HLO texts of equal blocks, one behind the other, as frameworks print a network's layers."""

from random import Random

SIZE = 8
_SHAPE = f"s32[{SIZE},{SIZE}]"
_OPS = ("add", "subtract", "multiply", *("dot",) * 4, "transpose", "spread", "row_sums")
SUM = """sum {
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT c = s32[] add(a, b)
}

"""


def layered_text(
    seed: int, layers: int, *, between: bool = False, backward: bool = False, shared: bool = True
) -> str:
    """Return a module of equal layers on integers, so that every order of sums gives the same.

    Layers read a weight of their own, a mask that is `shared`, a constant, and what layers before
    left. `between`: an op that is no layer stands after the second. `backward`: layers follow that
    read, the last first, what each of the others left.
    """
    draw = Random(seed)
    recipe = _recipe(draw, extra=0)
    back = _recipe(draw, extra=1) if backward else []
    lines = [f"  x = {_SHAPE} parameter(0)", f"  mask = {_SHAPE} parameter(1)"]
    lines += [f"  w{n} = {_SHAPE} parameter({n + 2})" for n in range(layers)]
    lines += ["  c = s32[] constant(3)", "  zero = s32[] constant(0)"]
    values, kept = ["x"], []
    for n in range(layers):
        inputs = [values[-1], f"w{n}", "mask" if shared else f"w{(n + 1) % layers}"]
        values.append(_layer(lines, recipe, f"l{n}", inputs))
        kept.append(f"l{n}.1")
        if between and n == 1:
            lines.append(f"  odd = {_SHAPE} negate({values[-1]})")
            values.append("odd")
    for n in reversed(range(layers if backward else 0)):
        values.append(_layer(lines, back, f"b{n}", [values[-1], f"w{n}", "mask", kept[n]]))
    results = [values[-1], kept[0], kept[-1]]
    shapes = ", ".join([_SHAPE] * len(results))
    lines.append(f"  ROOT out = ({shapes}) tuple({', '.join(results)})")
    body = "\n".join(lines)
    return f"HloModule layered\n\n{SUM}ENTRY e {{\n{body}\n}}\n"


def _recipe(draw: Random, extra: int) -> list[tuple[str, int, int]]:
    """Return ops with the numbers of what they read: inputs first, then what they made."""
    inputs = 3 + extra
    steps: list[tuple[str, int, int]] = []
    for number in range(draw.randint(5, 9)):
        known = inputs + number
        steps.append((draw.choice(_OPS), draw.randrange(known), draw.randrange(known)))
    # All inputs are read, and values stay small.
    steps[0] = ("add", 0, 1)
    steps[1] = ("subtract", inputs, 2)
    steps[-1] = ("minimum", inputs + len(steps) - 2, inputs - 1)
    return steps


def _layer(
    lines: list[str], recipe: list[tuple[str, int, int]], name: str, inputs: list[str]
) -> str:
    known = list(inputs)
    for number, (op, a, b) in enumerate(recipe):
        own, left, right = f"{name}.{number}", known[a], known[b]
        if op == "dot":
            lines.append(
                f"  {own} = {_SHAPE} dot({left}, {right}), "
                "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
            )
        elif op == "transpose":
            lines.append(f"  {own} = {_SHAPE} transpose({left}), dimensions={{1,0}}")
        elif op == "spread":
            lines.append(f"  {own}.c = {_SHAPE} broadcast(c), dimensions={{}}")
            lines.append(f"  {own} = {_SHAPE} add({left}, {own}.c)")
        elif op == "row_sums":
            lines.append(
                f"  {own}.r = s32[{SIZE}] reduce({left}, zero), dimensions={{1}}, to_apply=sum"
            )
            lines.append(f"  {own} = {_SHAPE} broadcast({own}.r), dimensions={{0}}")
        else:
            lines.append(f"  {own} = {_SHAPE} {op}({left}, {right})")
        known.append(own)
    return known[-1]


def looped_text(seed: int, layers: int, trips: int) -> str:
    """Return the same layers as the body of a loop that hands its value on `trips` times."""
    entry = layered_text(seed, layers).partition("ENTRY e {\n")[2]
    count = layers + 2
    state = f"(s32[], {', '.join([_SHAPE] * count)})"
    names = ["x", "mask", *(f"w{n}" for n in range(layers))]
    layer_lines = [
        line for line in entry.splitlines()[:-2] if " parameter(" not in line and "ROOT" not in line
    ]
    last = next(x for x in entry.splitlines() if "ROOT" in x).split("tuple(")[1].split(",")[0]
    read = [
        f"  {name} = {_SHAPE} get-tuple-element(s), index={n + 1}" for n, name in enumerate(names)
    ]
    body = "\n".join(
        [
            f"  s = {state} parameter(0)",
            "  i = s32[] get-tuple-element(s), index=0",
            "  one = s32[] constant(1)",
            "  next = s32[] add(i, one)",
            *read,
            *layer_lines,
            f"  ROOT t = {state} tuple(next, {', '.join([last, *names[1:]])})",
        ]
    )
    condition = (
        f"  s = {state} parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n"
        f"  n = s32[] constant({trips})\n  ROOT p = pred[] compare(i, n), direction=LT\n"
    )
    given = [f"  {name} = {_SHAPE} parameter({n})" for n, name in enumerate(names)]
    whole = "\n".join(
        [
            *given,
            "  z = s32[] constant(0)",
            f"  t = {state} tuple(z, {', '.join(names)})",
            f"  l = {state} while(t), condition=until, body=step",
            f"  ROOT r = {_SHAPE} get-tuple-element(l), index=1",
        ]
    )
    return (
        f"HloModule looped\n\n{SUM}step {{\n{body}\n}}\n\nuntil {{\n{condition}}}\n\n"
        f"ENTRY e {{\n{whole}\n}}\n"
    )

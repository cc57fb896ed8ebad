"""Run random sharded programs on the blocks of all devices, and whole on one.

    python -m tools.fuzz_spmd [--count N] [--first N] [--seconds S] [--out FOLDER]
                              [--workers N] [--scheduler ADDRESS]

Half of the modules state shardings in Shardy's words, along axes, parts of axes and open
dimensions, of parameters and on the way; the others are programs of `tools.fuzz_programs` with tile
assignments. Meshes have devices in any order, sizes need not divide, and paddings of parameters are
nan. Each device has to have its blocks of what the evaluator computes on whole arrays. What differs
or cannot be partitioned is saved under out/fuzz_spmd; ends with 1 if there is any.
"""

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printing.printer import print_module
from hloipu_compiler.interpret.participants import evaluate_participants
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.partition.spmd.partitioning import ready_to_divide
from hloipu_compiler.verify.verifier import verify
from tests.support.arrays import Array
from tests.support.blocks import check_on_devices
from tests.support.random_shardings import MESHES, with_random_shardings
from tools.fuzz_programs.program import generate
from tools.mapping import add_where, mapped, positive, where_of

OUT = Path("out/fuzz_spmd")
TOLERANCE = 2e-3
"""Sums of blocks are rounded in another order; values stay within a few hundred."""
HANGING = 12
"""Times the allowed processor time, by the clock: its worker is then ended. *Assumed.*"""
_SIZES = (2, 3, 5, 6, 8, 12)
_MOST_ELEMENTS = 4096
_APPLIED = "{0} {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] {0}(a, b) }}\n"

Value = tuple[str, tuple[int, ...]]
"""A name and its sizes."""


class Chain:
    """A module of a few ops in the making, whose shardings are said in Shardy's words."""

    def __init__(self, seed: int) -> None:
        self.draws = random.Random(seed)
        self.mesh = self.draws.choice(MESHES)
        self.lines: list[str] = ["zero = f32[] constant(0)", "half = f32[] constant(0.5)"]
        self.values: list[Value] = []
        self.called: list[str] = []
        """Computations of its own."""

    def text(self) -> str:
        """Return a random module."""
        draw = self.draws
        for number in range(draw.randint(1, 3)):
            sizes = tuple(draw.choice(_SIZES) for _ in range(draw.randint(1, 3)))
            self.add(f"parameter({number}), {self.stated(len(sizes))}", sizes)
        for _ in range(draw.randint(3, 9)):
            draw.choice(_OPS)(self, *draw.choice(self.values))
        last = self.values[-3:]
        shapes = ", ".join(map(_shape, (sizes for _, sizes in last)))
        root = f"ROOT root = ({shapes}) tuple({', '.join(name for name, _ in last)})"
        axes = ", ".join(f'"{"xyz"[i]}"={n}' for i, n in enumerate(self.mesh))
        order = list(range(prod(self.mesh)))
        if draw.random() < 0.3:
            draw.shuffle(order)
            axes += f"], device_ids={order}"
        else:
            axes += "]"
        header = f"frontend_attributes={{xla.sdy.meshes={{mesh = #sdy.mesh<[{axes}>}}}}"
        applied = "".join([*map(_APPLIED.format, ("add", "maximum")), _CALLED, *self.called])
        body = "\n".join(f"  {line}" for line in (*self.lines, root))
        return f"HloModule m, {header}\n{applied}ENTRY e {{\n{body}\n}}\n"

    def add(self, op: str, sizes: tuple[int, ...]) -> None:
        """Append an op whose result goes on, unless it is too large."""
        if prod(sizes) <= _MOST_ELEMENTS and 0 < len(sizes) <= 4:
            name = f"v{len(self.values)}"
            self.lines.append(f"{name} = {_shape(sizes)} {op}")
            self.values.append((name, sizes))

    def stated(self, rank: int) -> str:
        """Return a random sharding as an attribute."""
        draw = self.draws
        owned: list[list[str]] = [[] for _ in range(rank)]
        barred: list[str] = []
        axes = list(enumerate(self.mesh))
        draw.shuffle(axes)
        for number, size in axes:
            name, halves = f'"{"xyz"[number]}"', size % 2 == 0 and size > 2
            refs = [name]
            if halves and draw.random() < 0.4:
                refs = [f"{name}:(1)2", f"{name}:(2){size // 2}"]
                if draw.random() < 0.5:
                    refs.pop()
            for ref in refs:
                d = draw.randint(0, rank + 1)
                if d < rank and not (owned[d] and owned[d][-1][:3] == ref[:3]):
                    owned[d].append(ref)
                elif d == rank:
                    barred.append(ref)
        each = []
        for own in owned:
            if draw.random() < 0.4:
                own.append("?")
            later = "p1" if own and own != ["?"] and draw.random() < 0.15 else ""
            each.append(f"{{{', '.join(own)}}}{later}")
        more = f", replicated={{{', '.join(sorted(barred)[:1])}}}" if barred else ""
        text = f"#sdy.sharding<@mesh, [{', '.join(each)}]{more}>".replace('"', '\\"')
        return f'frontend_attributes={{xla.sdy.sharding="{text}"}}'


def _shape(sizes: Sequence[int]) -> str:
    return f"f32[{','.join(map(str, sizes))}]"


def _listed(numbers: Sequence[int]) -> str:
    return f"{{{','.join(map(str, numbers))}}}"


def _apply(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    c.add(f"{c.draws.choice(('sine', 'tanh', 'negate'))}({a})", sizes)


def _both(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    others = [name for name, own in c.values if own == sizes]
    c.add(f"{c.draws.choice(('add', 'maximum', 'subtract'))}({a}, {c.draws.choice(others)})", sizes)


def _constrain(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    c.add(f'custom-call({a}), custom_call_target="Sharding", {c.stated(len(sizes))}', sizes)


def _transpose(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    order = c.draws.sample(range(len(sizes)), len(sizes))
    c.add(f"transpose({a}), dimensions={_listed(order)}", tuple(sizes[i] for i in order))


def _reduce(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    d = c.draws.randrange(len(sizes))
    init, applied = c.draws.choice(("zero", "half")), c.draws.choice(("add", "maximum"))
    c.add(f"reduce({a}, {init}), dimensions={{{d}}}, to_apply={applied}", _without(sizes, d))


def _without(sizes: tuple[int, ...], d: int) -> tuple[int, ...]:
    return sizes[:d] + sizes[d + 1 :]


def _replaced(sizes: tuple[int, ...], d: int, *own: int) -> tuple[int, ...]:
    return sizes[:d] + own + sizes[d + 1 :]


def _broadcast(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    d = c.draws.randrange(len(sizes) + 1)
    result = (*sizes[:d], c.draws.choice(_SIZES), *sizes[d:])
    kept = [i for i in range(len(result)) if i != d]
    c.add(f"broadcast({a}), dimensions={_listed(kept)}", result)


def _reshape(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    d = c.draws.randrange(len(sizes))
    if d + 1 < len(sizes) and c.draws.random() < 0.5:
        c.add(f"reshape({a})", (*sizes[:d], sizes[d] * sizes[d + 1], *sizes[d + 2 :]))
    else:
        major = c.draws.choice([n for n in range(1, sizes[d] + 1) if sizes[d] % n == 0])
        c.add(f"reshape({a})", _replaced(sizes, d, major, sizes[d] // major))


def _dot(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    shared = [(b, own) for b, own in c.values if set(own) & set(sizes)]
    b, own = c.draws.choice(shared)
    n = c.draws.choice(sorted(set(own) & set(sizes)))
    i, k = sizes.index(n), own.index(n)
    dims = f"lhs_contracting_dims={{{i}}}, rhs_contracting_dims={{{k}}}"
    c.add(f"dot({a}, {b}), {dims}", _without(sizes, i) + _without(own, k))


def _reverse(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    c.add(f"reverse({a}), dimensions={{{c.draws.randrange(len(sizes))}}}", sizes)


def _slice(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    d = c.draws.randrange(len(sizes))
    low = c.draws.randrange(sizes[d])
    high, step = c.draws.randint(low + 1, sizes[d]), c.draws.randint(1, 2)
    ranges = [f"[0:{n}]" for n in sizes]
    ranges[d] = f"[{low}:{high}:{step}]"
    c.add(
        f"slice({a}), slice={{{', '.join(ranges)}}}", _replaced(sizes, d, -(-(high - low) // step))
    )


def _pad(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    d = c.draws.randrange(len(sizes))
    low, high, between = c.draws.randint(-1, 2), c.draws.randint(0, 2), c.draws.randint(0, 1)
    rows = ["0_0"] * len(sizes)
    rows[d] = f"{low}_{high}_{between}"
    n = sizes[d] + low + high + between * (sizes[d] - 1)
    c.add(f"pad({a}, half), padding={'x'.join(rows)}", _replaced(sizes, d, n))


def _concatenate(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    d = c.draws.randrange(len(sizes))
    own = [
        v for v in c.values if len(v[1]) == len(sizes) and _without(v[1], d) == _without(sizes, d)
    ]
    b, others = c.draws.choice(own)
    c.add(f"concatenate({a}, {b}), dimensions={{{d}}}", _replaced(sizes, d, sizes[d] + others[d]))


def _window(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    d, n = c.draws.randrange(len(sizes)), 0
    n = sizes[d]
    size, pad = c.draws.choice([(n, f"{n - 1}_0"), (n, f"0_{n - 1}"), (min(3, n), "0_0")])
    windows, pads = ["1"] * len(sizes), ["0_0"] * len(sizes)
    windows[d], pads[d] = str(size), pad
    window = f"window={{size={'x'.join(windows)} pad={'x'.join(pads)}}}"
    result = n if pad != "0_0" or size == 1 else n - size + 1
    c.add(f"reduce-window({a}, zero), {window}, to_apply=add", _replaced(sizes, d, result))


def _take(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    d, start = c.draws.randrange(len(sizes)), f"i{len(c.lines)}"
    count = c.draws.randint(1, sizes[d])
    c.lines.append(f"{start} = s32[] constant({c.draws.randint(0, sizes[d])})")
    c.lines.append(f"{start}.0 = s32[] constant(0)")
    starts = ", ".join(start if i == d else f"{start}.0" for i in range(len(sizes)))
    result = _replaced(sizes, d, count)
    c.add(f"dynamic-slice({a}, {starts}), dynamic_slice_sizes={_listed(result)}", result)


def _gather(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    d, name = c.draws.randrange(len(sizes)), f"i{len(c.lines)}"
    rows = [c.draws.randrange(sizes[d]) for _ in range(c.draws.choice(_SIZES))]
    c.lines.append(f"{name} = s32[{len(rows)}] constant({_listed(rows)})")
    kept = [i + 1 if i >= d else i for i in range(len(sizes) - 1)]
    offsets = [i + 1 for i in range(len(kept))]
    c.add(
        f"gather({a}, {name}), offset_dims={_listed(offsets)}, collapsed_slice_dims={{{d}}}, "
        f"start_index_map={{{d}}}, index_vector_dim=1, "
        f"slice_sizes={_listed(_replaced(sizes, d, 1))}",
        (len(rows), *_without(sizes, d)),
    )


def _take_along(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    if len(sizes) < 2:
        return
    i, j = c.draws.sample(range(len(sizes)), 2)
    rows, name = [c.draws.randrange(sizes[j]) for _ in range(3)], f"i{len(c.lines)}"
    shape = f"s32[{sizes[i]},3,1]"
    c.lines += [
        f"{name} = s32[3] constant({_listed(rows)})",
        f"{name}.rows = {shape} broadcast({name}), dimensions={{1}}",
        f"{name}.batch = {shape} iota(), iota_dimension=0",
        f"{name}.both = s32[{sizes[i]},3,2] concatenate({name}.batch, {name}.rows), "
        "dimensions={2}",
    ]
    ones = _replaced(_replaced(sizes, i, 1), j, 1)
    rest = tuple(n for d, n in enumerate(sizes) if d not in (i, j))
    c.add(
        f"gather({a}, {name}.both), offset_dims={_listed([d + 2 for d in range(len(rest))])}, "
        f"collapsed_slice_dims={_listed(sorted((i, j)))}, start_index_map={_listed((i, j))}, "
        f"index_vector_dim=2, slice_sizes={_listed(ones)}",
        (sizes[i], 3, *rest),
    )


def _sort(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    d, result = c.draws.randrange(len(sizes)), f"s{len(c.lines)}"
    others = [name for name, own in c.values if own == sizes]
    both = f"({_shape(sizes)}, {_shape(sizes)})"
    c.lines.append(
        f"{result} = {both} sort({a}, {c.draws.choice(others)}), dimensions={{{d}}}, "
        "is_stable=true, to_apply=first_less"
    )
    c.add(f"get-tuple-element({result}), index={c.draws.randint(0, 1)}", sizes)


def _argmax(c: Chain, a: str, sizes: tuple[int, ...]) -> None:
    """Take the place of the greatest along a dimension, the first of equal ones."""
    d, name = c.draws.randrange(len(sizes)), f"m{len(c.lines)}"
    kept = _without(sizes, d)
    c.lines += [
        f"{name}.least = f32[] constant(-inf)",
        f"{name}.none = s32[] constant(0)",
        f"{name}.at = s32[{','.join(map(str, sizes))}] iota(), iota_dimension={d}",
        f"{name} = ({_shape(kept)}, s32[{','.join(map(str, kept))}]) reduce({a}, {name}.at, "
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
    state = f"(s32[], {_shape(sizes)}, {_shape(own)})"
    row = _replaced(own, d, 1)
    starts = ", ".join("i" if i == d else "none" for i in range(rank))
    kept = [i for i in range(rank) if i != d]
    c.called.append(f"""turn{number} {{
  s = {state} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = {_shape(sizes)} get-tuple-element(s), index=1
  w = {_shape(own)} get-tuple-element(s), index=2
  one = s32[] constant(1)
  none = s32[] constant(0)
  zero = f32[] constant(0)
  row = {_shape(row)} dynamic-slice(w, {starts}), dynamic_slice_sizes={_listed(row)}
  total = f32[] reduce(row, zero), dimensions={_listed(range(rank))}, to_apply=add
  wide = {_shape(sizes)} broadcast(total), dimensions={{}}
  y = {_shape(sizes)} add(x, wide)
  z = {_shape(sizes)} sine(y)
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
    row = _without(sizes, d)
    said = c.draws.choice(("add(x, c)", "subtract(x, c)", "maximum(x, c)"))
    c.called.append(f"""step{number} {{
  x = {_shape(row)} parameter(0)
  c = {_shape(row)} parameter(1)
  y = {_shape(row)} {said}
  ROOT r = ({_shape(row)}, {_shape(row)}) tuple(y, y)
}}
""")
    c.lines += [
        f"h{number} = {_shape(row)} broadcast(half), dimensions={{}}",
        f"n{number} = ({_shape(sizes)}, {_shape(row)}) scan({a}, h{number}), dimensions={{{d}}}, "
        f"num_carries=1, to_apply=step{number}, is_associative=false, "
        f"is_reverse={c.draws.choice(('true', 'false'))}",
    ]
    c.add(f"get-tuple-element(n{number}), index=0", sizes)


_CALLED = """first_less {
  a = f32[] parameter(0)  b = f32[] parameter(1)  c = f32[] parameter(2)  d = f32[] parameter(3)
  ROOT r = pred[] compare(a, b), direction=LT
}
first_greatest {
  a = f32[] parameter(0)  i = s32[] parameter(1)  b = f32[] parameter(2)  j = s32[] parameter(3)
  gt = pred[] compare(a, b), direction=GT  eq = pred[] compare(a, b), direction=EQ
  lt = pred[] compare(i, j), direction=LT  tie = pred[] and(eq, lt)  mine = pred[] or(gt, tie)
  x = f32[] select(mine, a, b)  k = s32[] select(mine, i, j)
  ROOT r = (f32[], s32[]) tuple(x, k)
}
"""
_OPS: tuple[Callable[[Chain, str, tuple[int, ...]], None], ...] = (
    _apply, _both, _constrain, _transpose, _reduce, _broadcast, _reshape, _dot, _reverse, _slice,
    _pad, _concatenate, _window, _take, _gather, _take_along, _sort, _argmax, _put, _loop, _scan,
)  # fmt: skip


def drawn(seed: int) -> tuple[Module, list[Array]]:
    """Return the sharded module of a seed, verified, and its arguments."""
    if seed % 2:
        module = parse(Chain(seed).text())
        verify(module)
        draws = np.random.default_rng(seed)
        shapes = (module.entry.instructions[i].shape for i in module.entry.parameters)
        sizes = [x.dimensions for x in shapes]  # type: ignore[union-attr]
        return module, [draws.standard_normal(n).astype(np.float32) * 0.3 for n in sizes]
    program = generate(3, seed)
    module = parse(program.text)
    verify(module)
    return with_random_shardings(module, np.random.default_rng(seed)), program.arguments()


def check(seed: int) -> Module:
    """Return the program of one device for the module of a seed; AssertionError if it is wrong."""
    module, arguments = drawn(seed)
    expected = evaluate_participants(module, [arguments])[0]
    return check_on_devices(ready_to_divide(module), arguments, expected, TOLERANCE)


class Outcome(NamedTuple):
    """What became of a module: the communication of its devices, or what was wrong."""

    seed: int
    meetings: Counter[str]
    wrong: str = ""


def judged(seed: int, seconds: float) -> Outcome:
    """Check the module of a seed, which may take so much processor time."""
    start = time.process_time()
    try:
        local = check(seed)
        spent = time.process_time() - start
        if spent > seconds:
            raise TimeoutError(f"{spent:.0f} s")
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        why = " ".join(str(error).split())[:200]
        return Outcome(seed, Counter(), f"{type(error).__name__} {why} ({last.name}:{last.lineno})")
    entry = local.entry.instructions
    return Outcome(seed, Counter(x.opcode for x in entry if "channel_id" in x.attributes))


def _lost(seed: int, said: str) -> Outcome:
    return Outcome(seed, Counter(), said)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the programs and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=positive, default=5, help="longest that one may take")
    parser.add_argument("--out", type=Path, default=OUT)
    add_where(parser)
    options = parser.parse_args(arguments)
    wrong, meetings = 0, Counter[str]()
    judge = partial(judged, seconds=options.seconds)
    seeds = range(options.first, options.first + options.count)
    where = where_of(options, seconds=HANGING * options.seconds)
    for outcome in mapped(judge, seeds, _lost, where):
        meetings += outcome.meetings
        if outcome.wrong:
            wrong += 1
            options.out.mkdir(parents=True, exist_ok=True)
            path = options.out / f"{outcome.seed}.hlo"
            path.write_text(print_module(drawn(outcome.seed)[0]), encoding="utf-8")
            print(f"{outcome.seed}: {outcome.wrong}\n  {path}", flush=True)
    print(f"{options.count - wrong} right, {wrong} wrong; {dict(meetings.most_common())}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

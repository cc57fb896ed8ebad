"""Time and memory of estimating long training steps on systems of many IPUs, and how they grow.

    python -m tools.bench scale [--counts N,N…] [--ipus N,N…] [--json FILE]

A training step of blocks (scale, two products, tanh, and a sum past them; momentum) is written as
text, as long as asked. `hloipu estimate` of it runs in a process of its own, whose time and memory
are measured: cut into as many stages as there are IPUs, and with `--plan auto`, which looks for the
best way first. Exit status 1: the step of 10,000 instructions takes more on 64 stages than
`MOST_SECONDS` or `MOST_BYTES`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hloipu_compiler.hlo.parse import parse

MOST_SECONDS, MOST_BYTES = 10.0, 1.5 * 2**30
JUDGED = (10_000, 64)
"""Instructions and IPUs to which the bounds apply."""
COUNTS, IPUS = (2_500, 5_000, 10_000, 20_000), (1, 16, 64)
BATCH, WIDTH = 16, 256
_HIDDEN = (512, 640, 768, 1024)
"""Widths within blocks, in turn: equal blocks come again, as in most models."""
_HEAD = """HloModule blocks

sum {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT z = f32[] add(x, y)
}

ENTRY main {"""


@dataclass(frozen=True, slots=True)
class Row:
    """One estimate."""

    instructions: int
    ipus: int
    plan: str
    """`stages`: as many as IPUs; `auto`: the best way is looked for."""
    seconds: float
    """Of processor time, start-up included."""
    peak_bytes: int


class _Writer:
    """A training step under construction, forward ops first."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.lines = [_HEAD]
        self.shapes: list[str] = []
        for block in range(blocks):
            inner = _HIDDEN[block % len(_HIDDEN)]
            self.shapes += [f"f32[{WIDTH}]", f"f32[{WIDTH},{inner}]", f"f32[{inner},{WIDTH}]"]

    def put(self, name: str, shape: str, value: str) -> None:
        self.lines.append(f"  {name} = {shape} {value}")

    def text(self) -> str:
        count = len(self.shapes)
        for kind, first in (("w", 0), ("v", count)):
            for number, shape in enumerate(self.shapes):
                self.put(f"{kind}{number}", shape, f"parameter({first + number})")
        data = f"f32[{BATCH},{WIDTH}]"
        self.put("h0", data, f"parameter({2 * count})")
        self.put("zero", "f32[]", "constant(0)")
        self.put("one", "f32[]", "constant(1)")
        for name, value in (("rate", 0.01), ("decay", 0.9)):
            self.put(name, "f32[]", f"constant({value})")
        for block in range(self.blocks):
            self._forward(block, data)
        last = f"h{self.blocks}"
        self.put("squares", data, f"multiply({last}, {last})")
        self.put("loss", "f32[]", "reduce(squares, zero), dimensions={0,1}, to_apply=sum")
        self.put(f"g{self.blocks}", data, f"add({last}, {last})")
        for block in reversed(range(self.blocks)):
            self._backward(block, data)
        for number, shape in enumerate(self.shapes):
            self._update(number, shape)
        kinds = ", ".join([*self.shapes, *self.shapes, "f32[]"])
        names = [f"{kind}{n}.new" for kind in "wv" for n in range(count)]
        self.put("ROOT result", f"({kinds})", f"tuple({', '.join([*names, 'loss'])})")
        return "\n".join([*self.lines, "}", ""])

    def _forward(self, n: int, data: str) -> None:
        inner = f"f32[{BATCH},{_HIDDEN[n % len(_HIDDEN)]}]"
        self.put(f"s{n}", data, f"broadcast(w{3 * n}), dimensions={{1}}")
        self.put(f"x{n}", data, f"multiply(h{n}, s{n})")
        self._dot(f"u{n}", inner, f"x{n}", f"w{3 * n + 1}", 1, 0)
        self.put(f"t{n}", inner, f"tanh(u{n})")
        self._dot(f"d{n}", data, f"t{n}", f"w{3 * n + 2}", 1, 0)
        self.put(f"h{n + 1}", data, f"add(h{n}, d{n})")

    def _backward(self, n: int, data: str) -> None:
        inner = f"f32[{BATCH},{_HIDDEN[n % len(_HIDDEN)]}]"
        scale, up, down = self.shapes[3 * n : 3 * n + 3]
        self._dot(f"w{3 * n + 2}.g", down, f"t{n}", f"g{n + 1}", 0, 0)
        self._dot(f"t{n}.g", inner, f"g{n + 1}", f"w{3 * n + 2}", 1, 1)
        self.put(f"tt{n}", inner, f"multiply(t{n}, t{n})")
        self.put(f"ones{n}", inner, "broadcast(one), dimensions={}")
        self.put(f"slope{n}", inner, f"subtract(ones{n}, tt{n})")
        self.put(f"u{n}.g", inner, f"multiply(t{n}.g, slope{n})")
        self._dot(f"w{3 * n + 1}.g", up, f"x{n}", f"u{n}.g", 0, 0)
        self._dot(f"x{n}.g", data, f"u{n}.g", f"w{3 * n + 1}", 1, 1)
        self.put(f"xh{n}", data, f"multiply(x{n}.g, h{n})")
        self.put(f"w{3 * n}.g", scale, f"reduce(xh{n}, zero), dimensions={{0}}, to_apply=sum")
        self.put(f"xs{n}", data, f"multiply(x{n}.g, s{n})")
        self.put(f"g{n}", data, f"add(g{n + 1}, xs{n})")

    def _update(self, n: int, shape: str) -> None:
        self.put(f"decay{n}", shape, "broadcast(decay), dimensions={}")
        self.put(f"rate{n}", shape, "broadcast(rate), dimensions={}")
        self.put(f"less{n}", shape, f"multiply(v{n}, decay{n})")
        self.put(f"v{n}.new", shape, f"add(less{n}, w{n}.g)")
        self.put(f"move{n}", shape, f"multiply(v{n}.new, rate{n})")
        self.put(f"w{n}.new", shape, f"subtract(w{n}, move{n})")

    def _dot(self, name: str, shape: str, a: str, b: str, of_a: int, of_b: int) -> None:
        dims = f"lhs_contracting_dims={{{of_a}}}, rhs_contracting_dims={{{of_b}}}"
        self.put(name, shape, f"dot({a}, {b}), {dims}")


def training_step(instructions: int) -> str:
    """Return a training step of about so many instructions."""
    few, more = (parse(_Writer(n).text()).instruction_count for n in (1, 2))
    return _Writer(max(1, round((instructions - few) / (more - few)) + 1)).text()


def measured(text: str, ipus: int, plan: str, target: str) -> Row:
    """Return what an estimate takes in a process of its own; CalledProcessError where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.hlo"
        path.write_text(text, encoding="utf-8")
        asked = ["--plan", "auto", "--ipus", str(ipus)]
        if plan == "stages":
            asked = ["--stages", str(ipus), "--micro-batches", str(4 * ipus)]
        command = [sys.executable, "-m", "hloipu", "estimate", str(path), "--target", target,
                   "--no-cache", *asked]  # fmt: skip
        code = (
            "import resource, subprocess, sys\n"
            "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, "
            "stderr=subprocess.DEVNULL)\n"
            "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
            "print(used.ru_utime + used.ru_stime, used.ru_maxrss)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *command], check=True, capture_output=True, text=True
        )
    seconds, kibibytes = done.stdout.split()
    return Row(parse(text).instruction_count, ipus, plan, float(seconds), int(kibibytes) * 1024)


def rows(counts: Sequence[int], systems: Sequence[int], target: str) -> Iterator[Row]:
    """Yield the estimates of steps of so many instructions on so many IPUs."""
    for count in counts:
        text = training_step(count)
        for ipus in systems:
            yield measured(text, ipus, "stages", target)
            yield measured(text, ipus, "auto", target)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--counts", default=",".join(map(str, COUNTS)))
    parser.add_argument("--ipus", default=",".join(map(str, IPUS)))
    parser.add_argument("--target", default="bow")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    asked = parser.parse_args(arguments)
    counts, systems = ([int(x) for x in text.split(",")] for text in (asked.counts, asked.ipus))
    print(f"load {os.getloadavg()[0]:.2f}")
    print(f"{'instructions':>12}{'IPUs':>6}{'plan':>8}{'seconds':>10}{'peak MiB':>10}")
    found = []
    for row in rows(counts, systems, asked.target):
        found.append(row)
        print(f"{row.instructions:>12,}{row.ipus:>6}{row.plan:>8}{row.seconds:>10.2f}"
              f"{row.peak_bytes / 2**20:>10.0f}", flush=True)  # fmt: skip
    if asked.json:
        figures = {"schema": "hloipu.bench-scale/1", "rows": [asdict(row) for row in found]}
        asked.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    least = 0.95 * JUDGED[0]
    judged = [x for x in found if least <= x.instructions <= 1.05 * JUDGED[0]]
    judged = [x for x in judged if x.ipus == JUDGED[1] and x.plan == "stages"]
    slow = [x for x in judged if x.seconds > MOST_SECONDS or x.peak_bytes > MOST_BYTES]
    if slow:
        print(f"more than {MOST_SECONDS:.0f} s or {MOST_BYTES / 2**30:.1f} GiB", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())

"""Random small modules in which rows of arrays are read, changed and put together."""

import random

ROWS = 6
_UNARY = ("negate", "abs", "sign", "copy")
_BINARY = ("add", "subtract", "multiply", "maximum", "minimum")
_REDUCERS = {"add": "0", "maximum": "-99", "minimum": "99", "multiply": "1"}


class Writer:
    """Lines of one entry over s32 arrays, so that any order of additions gives the same."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lines: list[str] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.cuts: set[str] = set()
        """Slices and concatenations along rows."""

    def add(self, shape: tuple[int, ...], text: str) -> str:
        """Append an instruction and return its name."""
        name = f"v{len(self.shapes)}"
        kind = f"s32[{','.join(map(str, shape))}]"
        self.lines.append(f"{name} = {kind} {text}")
        self.shapes[name] = shape
        return name

    def pick(self, shape: tuple[int, ...] | None = None, rank: int = 0) -> str | None:
        """Return some value of a shape, or of at least a rank."""
        found = [
            name
            for name, each in self.shapes.items()
            if (shape is None or each == shape) and len(each) >= rank
        ]
        return self.rng.choice(found) if found else None

    def step(self) -> None:
        """Append an op on what is there."""
        rng = self.rng
        name = self.pick(rank=1)
        if name is None:
            return
        shape = self.shapes[name]
        match rng.randrange(11):
            case 0:
                self.add(shape, f"{rng.choice(_UNARY)}({name})")
            case 1 | 2:
                self.add(shape, f"{rng.choice(_BINARY)}({name}, {self.pick(shape)})")
            case 3:
                order = rng.sample(range(len(shape)), len(shape))
                to = tuple(shape[d] for d in order)
                self.add(to, f"transpose({name}), dimensions={{{','.join(map(str, order))}}}")
            case 4:
                self._reshape(name)
            case 5 | 6:
                self._slice(name)
            case 7:
                self._concatenate(name)
            case 8:
                axis = rng.randrange(len(shape))
                kind = rng.choice(list(_REDUCERS))
                zero = self.add((), f"constant({_REDUCERS[kind]})")
                to = (*shape[:axis], *shape[axis + 1 :])
                self.add(to, f"reduce({name}, {zero}), dimensions={{{axis}}}, to_apply={kind}")
            case 9:
                size, place = rng.choice((2, 3)), rng.randrange(len(shape) + 1)
                to = (*shape[:place], size, *shape[place:])
                kept = ",".join(str(d) for d in range(len(to)) if d != place)
                if len(to) < 5:
                    self.add(to, f"broadcast({name}), dimensions={{{kept}}}")
            case 10:
                axis = rng.randrange(len(shape))
                self.add(shape, f"reverse({name}), dimensions={{{axis}}}")

    def _reshape(self, name: str) -> None:
        shape, rng = self.shapes[name], self.rng
        axis = rng.randrange(len(shape))
        size = shape[axis]
        by = [n for n in range(1, size + 1) if size % n == 0]
        part = rng.choice(by)
        to = (*shape[:axis], part, size // part, *shape[axis + 1 :])
        if len(shape) > 1 and rng.random() < 0.5:
            axis = rng.randrange(len(shape) - 1)
            to = (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :])
        if len(to) < 5:
            self.add(to, f"reshape({name})")

    def _slice(self, name: str) -> None:
        shape, rng = self.shapes[name], self.rng
        axis = rng.randrange(len(shape))
        if shape[axis] < 2:
            return
        begin = rng.randrange(shape[axis])
        end = rng.randrange(begin + 1, shape[axis] + 1)
        ranges = [f"[0:{size}]" for size in shape]
        ranges[axis] = f"[{begin}:{end}]"
        to = (*shape[:axis], end - begin, *shape[axis + 1 :])
        self.cuts.add(self.add(to, f"slice({name}), slice={{{', '.join(ranges)}}}"))

    def _concatenate(self, name: str) -> None:
        shape, rng = self.shapes[name], self.rng
        axis = rng.randrange(len(shape))
        others = [
            other
            for other, each in self.shapes.items()
            if len(each) == len(shape)
            and all(a == b for d, (a, b) in enumerate(zip(each, shape, strict=True)) if d != axis)
        ]
        taken = [name, *(rng.choice(others) for _ in range(rng.randrange(1, 3)))]
        size = sum(self.shapes[other][axis] for other in taken)
        if size <= 3 * ROWS:
            to = (*shape[:axis], size, *shape[axis + 1 :])
            text = f"concatenate({', '.join(taken)}), dimensions={{{axis}}}"
            self.cuts.add(self.add(to, text))


def random_step(seed: int) -> tuple[str, int, int, frozenset[str]]:
    """Return a module's text, how many parameters and results it has, and some of its cuts."""
    writer = Writer(seed)
    rng = writer.rng
    kinds = [(ROWS, 2), (ROWS,), (2, ROWS), (ROWS, 2), (3, 2)][: rng.randrange(2, 6)]
    for number, shape in enumerate(kinds):
        writer.add(shape, f"parameter({number})")
    for _ in range(rng.randrange(6, 22)):
        writer.step()
    names = list(writer.shapes)
    results = [rng.choice(names) for _ in range(rng.randrange(1, 5))] + names[-2:]
    shapes = ", ".join(f"s32[{','.join(map(str, writer.shapes[x]))}]" for x in results)
    reducers = "\n".join(
        f"{kind} {{\n  p = s32[] parameter(0)\n  q = s32[] parameter(1)\n"
        f"  ROOT o = s32[] {kind}(p, q)\n}}\n"
        for kind in _REDUCERS
    )
    body = "\n  ".join(writer.lines)
    text = (
        f"HloModule m\n\n{reducers}\nENTRY e {{\n  {body}\n"
        f"  ROOT r = ({shapes}) tuple({', '.join(results)})\n}}\n"
    )
    kept = frozenset(x for x in sorted(writer.cuts) if rng.random() < 0.7)
    return text, len(kinds), len(results), kept

"""Mutations of HLO texts: cuts, splices, flipped bits, token edits, deep and giant things."""

import random
import re
from collections.abc import Callable, Sequence

_TOKEN = re.compile(r"[A-Za-z_%][\w.%-]*|-?\d[\w.+-]*|\s+|.", re.DOTALL)
KINDS = (
    re.compile(r"\b[a-z]+\d*\[[\d,]*\](?:\{[\d,]*\})?"),
    re.compile(r"%[\w.-]+|(?<=[(, ])[a-z_]+\.\d+"),
    re.compile(r"(?<== )?\b[a-z][a-z-]+(?=\()"),
    re.compile(r"\b[a-z_]+=(?:\{[^{}]*\}|[\w.%-]+)"),
    re.compile(r"(?<==)\{[\d,]*\}"),
    re.compile(r"\d+"),
    re.compile(r"\([^()]*\)"),
    re.compile(r"(?<=direction=)[A-Z]+|(?<=type=)\w+|true|false"),
)
"""Shapes, names, opcodes, attributes, lists, numbers, operand lists, words: things that can stand
for one another, so that the text still parses more often than not."""
VOCABULARY = (
    "HloModule ENTRY ROOT %x p0 f32[4] f32[] (f32[2],s32[]) token[] pred[] c64[2] {1,0} {0:T(8)} "
    "parameter(0) constant({1,2}) add( tuple() get-tuple-element( while( fusion( call( reduce( "
    "dimensions={0} to_apply=f calls=f index=0 slice={[0:1]} window={size=3} replica_groups={{0}} "
    'metadata={} sharding={replicated} backend_config={} = , : { } ( ) [ ] -> <= ... # * + ~ ? " '
    "' "
    "/* */ // \\ nan inf -inf 1e9 0x1 true false s4 b( 0_0 3x3 b01f_01io->b01f -1 99999999999 "
    "is_scheduled=true input_output_alias={{}:(0,{})} entry_computation_layout={()->f32[]}"
).split()
GIANTS = (
    "9" * 19, "9" * 40, "9" * 4000, "-" + "9" * 25, "1e400", "1e-400", "18446744073709551616",
    "9223372036854775807", "-9223372036854775808", "4294967296", "2147483648", "0" * 5000 + "1",
)  # fmt: skip
MOST_NESTING = 20_000


def _span(text: str, rng: random.Random, most: int) -> tuple[int, int]:
    start = rng.randrange(len(text) + 1)
    return start, min(len(text), start + rng.randrange(1, most + 1))


def truncate(text: str, rng: random.Random, _: Sequence[str]) -> str:
    """Cut the end off."""
    return text[: rng.randrange(len(text) + 1)]


def delete(text: str, rng: random.Random, _: Sequence[str]) -> str:
    """Take a stretch out, often a single character."""
    start, end = _span(text, rng, rng.choice((1, 1, 4, 40, 400)))
    return text[:start] + text[end:]


def swap(text: str, rng: random.Random, _: Sequence[str]) -> str:
    """Exchange two stretches."""
    a, b = sorted((_span(text, rng, 40), _span(text, rng, 40)))
    if a[1] > b[0]:
        return text
    return text[: a[0]] + text[b[0] : b[1]] + text[a[1] : b[0]] + text[a[0] : a[1]] + text[b[1] :]


def duplicate(text: str, rng: random.Random, _: Sequence[str]) -> str:
    """Repeat a stretch where it stands."""
    start, end = _span(text, rng, rng.choice((1, 8, 80, 800)))
    return text[:end] + text[start:end] * rng.choice((1, 1, 2, 30)) + text[end:]


def splice(text: str, rng: random.Random, others: Sequence[str]) -> str:
    """Put a stretch of another text in."""
    other = rng.choice(others)
    start, end = _span(other, rng, rng.choice((20, 200, 2000)))
    at = rng.randrange(len(text) + 1)
    return text[:at] + other[start:end] + text[at:]


def flip_bits(text: str, rng: random.Random, _: Sequence[str]) -> str:
    """Flip bits of a few characters."""
    characters = list(text)
    for _ignored in range(min(len(characters), rng.choice((1, 1, 3, 20)))):
        at = rng.randrange(len(characters))
        characters[at] = chr((ord(characters[at]) ^ (1 << rng.randrange(8))) & 0xFF)
    return "".join(characters)


def edit_tokens(text: str, rng: random.Random, _: Sequence[str]) -> str:
    """Replace, drop, double or exchange a few tokens, all near one place."""
    at = rng.randrange(len(text) + 1)
    end = min(len(text), at + 400)
    tokens = _TOKEN.findall(text[at:end])
    for _ignored in range(min(len(tokens), rng.choice((1, 1, 2, 5)))):
        place = rng.randrange(len(tokens))
        other = rng.randrange(len(tokens))
        action = rng.randrange(5)
        if action == 0:
            tokens[place] = rng.choice(VOCABULARY)
        elif action == 1:
            tokens[place] = ""
        elif action == 2:
            tokens[place] *= 2
        elif action == 3:
            tokens[place], tokens[other] = tokens[other], tokens[place]
        else:
            tokens[place] += rng.choice(VOCABULARY)
    return text[:at] + "".join(tokens) + text[end:]


def exchange(text: str, rng: random.Random, _: Sequence[str]) -> str:
    """Put one shape, name, opcode, attribute or list in the place of another of its kind."""
    start = rng.randrange(len(text) + 1)
    kind = rng.choice(KINDS)
    matches = list(kind.finditer(text, start, min(len(text), start + 3000)))
    if len(matches) < 2:
        return text
    a, b = sorted(rng.sample(matches, 2), key=lambda match: match.start())
    if rng.random() < 0.5:
        return text[: a.start()] + b[0] + text[a.end() :]
    return text[: a.start()] + b[0] + text[a.end() : b.start()] + a[0] + text[b.end() :]


def edit_lines(text: str, rng: random.Random, _: Sequence[str]) -> str:
    """Delete, double, move or join lines."""
    lines = text.split("\n")
    for _ignored in range(rng.choice((1, 1, 3))):
        a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
        action = rng.randrange(4)
        if action == 0:
            lines[a] = ""
        elif action == 1:
            lines.insert(b, lines[a])
        elif action == 2:
            lines[a], lines[b] = lines[b], lines[a]
        else:
            lines[a] += lines[b]
    return "\n".join(lines)


def change_number(text: str, rng: random.Random, _: Sequence[str]) -> str:
    """Replace a number by a giant, a negative or a neighbour."""
    numbers = list(re.finditer(r"\d+", text[:65536]))
    if not numbers:
        return text
    number = rng.choice(numbers)
    value = rng.choice((*GIANTS, "0", "-1", "1", str(int(number[0][:18]) + 1)))
    return text[: number.start()] + value + text[number.end() :]


def nest(text: str, rng: random.Random, _: Sequence[str]) -> str:
    """Put something deep in: brackets, nested instructions, layouts, comments, bodies."""
    depth = int(10 ** rng.uniform(1, 4.3))
    forms: tuple[tuple[str, str, str], ...] = (
        ("(", "f32[]", ")"), ("{", "1", "}"), ("[", "1", "]"), ("add(", "p", ")"),
        ("f32[] negate(", "p", ")"), ("{a=", "1", "}"), ("/*", "", "*/"), ("(", "", ""),
        ("{", "", ""), ('"', "", ""), ("b(", "f32[]", ")"),
        ("to_apply={ROOT r = f32[] call(), ", "", "}"), ("{0:P(f32[4]", "", ")}"),
    )  # fmt: skip
    opening, middle, closing = rng.choice(forms)
    depth = min(depth, MOST_NESTING)
    at = rng.randrange(len(text) + 1)
    return text[:at] + opening * depth + middle + closing * depth + text[at:]


def tuple_bomb(text: str, rng: random.Random, _: Sequence[str]) -> str:
    """Add a computation whose tuples double in leaves at each step, without written shapes."""
    levels = rng.choice((5, 20, 64, 200))
    lines = ["bomb {", "  t0 = f32[] parameter(0)"]
    lines += [f"  t{i} = tuple(t{i - 1}, t{i - 1})" for i in range(1, levels + 1)]
    lines += [f"  ROOT r = tuple(t{levels})", "}"]
    at = text.find("\nENTRY")
    at = at if at >= 0 else len(text)
    return text[:at] + "\n" + "\n".join(lines) + "\n" + text[at:]


def call_bomb(text: str, rng: random.Random, _: Sequence[str]) -> str:
    """Add computations that each call the one before twice."""
    levels = rng.choice((5, 30, 300))
    bodies = ["c0 { ROOT x = f32[] parameter(0) }"]
    for i in range(1, levels):
        bodies.append(
            f"c{i} {{ x = f32[] parameter(0) y = f32[] call(x), to_apply=c{i - 1} "
            f"ROOT z = f32[] call(y), to_apply=c{i - 1} }}"
        )
    at = text.find("\nENTRY")
    at = at if at >= 0 else len(text)
    return text[:at] + "\n" + "\n".join(bodies) + "\n" + text[at:]


Mutator = Callable[[str, random.Random, Sequence[str]], str]
COMMON: tuple[Mutator, ...] = (
    truncate, delete, swap, duplicate, splice, flip_bits, edit_tokens, edit_lines, change_number,
    exchange, exchange, exchange, exchange, exchange,
)  # fmt: skip
RARE: tuple[Mutator, ...] = (nest, tuple_bomb, call_bomb)


def mutate(text: str, rng: random.Random, others: Sequence[str]) -> str:
    """Return a text with one to four mutations."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
        mutator = rng.choice(RARE) if rng.random() < 0.08 else rng.choice(COMMON)
        text = mutator(text, rng, others)
    return text

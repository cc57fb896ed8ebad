"""Goldens of passes: modules, and under each what a pipeline makes of it.

A golden begins with computations that its cases may call. A line that begins with `$` is the
command for the cases below it. A case is a comment that says what it shows, a module, a line
`// becomes`, and the module that comes out; or `// stays` where that is the very module that went
in. Computations that are as before are not shown again; the line names those that are gone, and
says how often loops run where the plan notes it.
"""

import re
from typing import NamedTuple

from hloipu_compiler.hlo.parse import parse
from hloipu_compiler.hlo.printing.print_options import Form, PrintOptions
from hloipu_compiler.hlo.printing.printer import print_module
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.passes import run_passes
from hloipu_compiler.plan.plan import Plan
from hloipu_compiler.verify.verifier import verify

COMMAND = "$ hloipu opt --passes="
_PRINTED = PrintOptions(Form.SHORT, metadata=True, index_comments=0)


class Case(NamedTuple):
    """A module of a golden, and what the golden says of it."""

    pipeline: str
    title: str
    module: str
    """As it stands there, without the computations that it shares with other cases."""
    text: str
    """The whole module."""
    verdict: str
    """The line below the module, and what stands under it."""


def cases_of(golden: str) -> list[Case]:
    """Return the cases of a golden, in order."""
    cases: list[Case] = []
    first, *blocks = re.split(r"(?:^|\n\n)(?=\$ |// )", golden.strip())
    shared = {text.partition(" ")[0]: text for text in first.split("\n\n")}
    pipeline = ""
    for block in blocks:
        if block.startswith(COMMAND):
            pipeline = block.removeprefix(COMMAND)
            continue
        title, _, rest = block.partition("\n")
        module, *verdict = re.split(r"\n(?=// (?:becomes|stays)\b)", rest, maxsplit=1)
        text = _with_called(module, shared)
        cases.append(Case(pipeline, title, module, text, "".join(verdict)))
    return cases


def _with_called(module: str, shared: dict[str, str]) -> str:
    """Return a module with those of the shared computations that it calls and does not have."""
    called = [
        text
        for name, text in shared.items()
        if re.search(rf"={name}\b", module) and f"\n{name} {{" not in f"\n{module}"
    ]
    head, *own = module.split("\n\n") if module.startswith("HloModule") else ("", module)
    return "\n\n".join([head, *called, *own]).lstrip()


def with_verdict(golden: str, case: Case, verdict: str) -> str:
    """Return a golden with another verdict on one of its cases."""
    now = f"{case.title}\n{case.module}\n"
    return golden.replace(now + (f"{case.verdict}\n" if case.verdict else ""), f"{now}{verdict}\n")


class Passed(NamedTuple):
    """A module before and after a pipeline."""

    before: Module
    after: Module
    plan: Plan


def passed_of(case: Case) -> Passed:
    """Read and verify a case's module and run its pipeline, verified after each pass."""
    before = parse(case.text)
    verify(before)
    return Passed(before, *run_passes(before, None, case.pipeline))


def verdict_of(passed: Passed) -> str:
    """Return what a golden should say of what came out."""
    old, new = (_printed(module) for module in (passed.before, passed.after))
    gone = ", ".join(name for name in old if name not in new)
    trips = ", ".join(f"{name} {n} times" for (_, name), n in passed.plan.trip_counts.items())
    line = "stays" if passed.after is passed.before else "becomes"
    line += (f", without {gone}" if gone else "") + (f", with loops: {trips}" if trips else "")
    shown = [text for name, text in new.items() if old.get(name) != text]
    return "\n".join([f"// {line}", "\n\n".join(shown)]).rstrip()


def _printed(module: Module) -> dict[str, str]:
    """Return the header under an empty name, and each computation under its own."""
    header, *computations = print_module(module, _PRINTED).rstrip().split("\n\n")
    names = (text.removeprefix("ENTRY ").partition(" ")[0] for text in computations)
    return {"": header, **dict(zip(names, computations, strict=True))}

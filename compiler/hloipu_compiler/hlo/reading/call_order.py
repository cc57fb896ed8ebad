"""Checks that called computations exist and that none calls itself."""

import re
from typing import TYPE_CHECKING

from hloipu_compiler.hlo.syntax.records import Stretch
from hloipu_compiler.ir.attributes import Attributes

if TYPE_CHECKING:
    from hloipu_compiler.hlo.reading.build import ModuleBuilder


def check_call_order(module: "ModuleBuilder") -> None:
    """Report references to computations that do not exist, and recursion.

    A caller may stand before its callee: XLA's printer writes some call graphs that way, although
    its parser refuses them.
    """
    computations = module.computations
    order = {name: i for i, name in enumerate(computations)}
    forward: list[str] = []
    for i, computation in enumerate(computations.values()):
        checked_ids: set[int] = set()
        for instruction in computation.instructions:
            attributes: Attributes = instruction.attributes
            if not attributes.called or id(attributes) in checked_ids:
                continue
            checked_ids.add(id(attributes))
            for name in attributes.called:
                if name not in order:
                    _report_missing(module, name, instruction.start, instruction.end)
                elif order[name] >= i:
                    forward.append(computation.name)
    if forward and not module.faults:
        _check_acyclic(module)


def _report_missing(module: "ModuleBuilder", name: str, start: int, end: int) -> None:
    hint = module.reader.suggestions.hint(name, module.computations)
    mention = re.compile(rf"[={{,]\s*%?({re.escape(name)})(?![\w.\-])", re.ASCII)
    match = mention.search(module.source.text, start, end)
    where = Stretch(match.start(1), match.end(1)) if match else Stretch(start, end)
    module.report(
        where, "E0169", f"there is no computation {name}",
        expected="the name of a computation of this module", hint=hint,
    )  # fmt: skip


def _check_acyclic(module: "ModuleBuilder") -> None:
    """Report one computation of a cycle of calls."""
    from hloipu_compiler.analysis.call_graph import call_cycle  # few texts call forward

    called = {
        name: list({c: None for op in computation.instructions for c in op.attributes.called})
        for name, computation in module.computations.items()
    }
    cycle = call_cycle(called)
    if cycle:
        caller, callee = cycle[-2:]
        start = module.computations[caller].start
        message = f"computation {callee} calls itself, through {caller}"
        module.report(Stretch(start, start + 1), "E0170", message)

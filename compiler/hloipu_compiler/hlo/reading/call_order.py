"""Every computation that is referred to exists, and none calls itself."""

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
        seen: set[int] = set()
        for instruction in computation.instructions:
            attributes: Attributes = instruction.attributes
            if not attributes.called or id(attributes) in seen:
                continue
            seen.add(id(attributes))
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
    found = mention.search(module.source.text, start, end)
    where = Stretch(found.start(1), found.end(1)) if found else Stretch(start, end)
    module.report(
        where, "E0169", f"there is no computation {name}",
        expected="the name of a computation of this module", hint=hint,
    )  # fmt: skip


def _check_acyclic(module: "ModuleBuilder") -> None:
    """Report one computation of each cycle of calls; depth first, without recursion."""
    called = {
        name: list({c: None for x in computation.instructions for c in x.attributes.called})
        for name, computation in module.computations.items()
    }
    state = dict.fromkeys(called, 0)  # 0 new, 1 open, 2 done
    for start in called:
        stack = [start] if state[start] == 0 else []
        while stack:
            name = stack[-1]
            state[name] = 1
            for callee in called[name]:
                if state[callee] == 0:
                    stack.append(callee)
                    break
                if state[callee] == 1:
                    computation = module.computations[name]
                    module.report(
                        Stretch(computation.start, computation.start + 1), "E0170",
                        f"computation {callee} calls itself, through {name}",
                    )  # fmt: skip
                    return
            else:
                state[name] = 2
                stack.pop()

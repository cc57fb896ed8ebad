"""Convert modules in Graphcore's encoding to plain steps before anything else reads them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from hloipu.definitions import defined
from hloipu.options.resolve import resolve
from hloipu_compiler.analysis.module_notes import module_notes
from hloipu_compiler.hlo.attributes.frontend_attributes import read_frontend_attributes
from hloipu_compiler.ir.graph import Module
from hloipu_compiler.on_demand import flat_step, is_divided, may_be_divided
from hloipu_compiler.passes.remove_annotations import annotations_removed
from hloipu_compiler.verify.verifier import verify
from hloipu_runtime.errors import UnsupportedError

if TYPE_CHECKING:
    from hloipu_compiler.graphcore.encoding.flat_step import FlatStep

_NOTHING: Mapping[str, object] = MappingProxyType({})


def read_encoded(module: Module, stated: Mapping[str, object]) -> tuple[Module, "FlatStep | None"]:
    """Return a module without annotations, and as a plain step if it is in Graphcore's encoding.

    Or if a loop of its entry reads queues; the step has annotations that divide arrays. `stated`:
    the options of the call, which come before what the module says. Raises what `verify` raises,
    FormulaError E0530 and E0531, and PoplarError E0540 to E0549.
    """
    verify(module)
    module = defined(module, stated)
    bare = annotations_removed(module)
    source = module if _keeps(module, stated, None) else bare
    return bare, flat_step(source, _count(stated), is_cut=True)


def plain_step(
    module: Module, stated: Mapping[str, object], config: str | None = None
) -> tuple[Module, list[str]]:
    """Return a verified module as a plain step, and what was read or left unused, for people.

    Any other module is returned without annotations, but for those that may divide arrays; so is
    one with a loop that reads queues, unless options cut it. `stated`: the options of the call,
    which come before what the module says; it states its own in its header. `config`: the
    configuration file, if one is named. Custom calls are replaced by their definitions first.
    Raises what `defined` raises, FormulaError E0530 and E0531, and PoplarError E0540 to E0549.
    What options say of shardings is written into it; raises what `with_shardings` raises.
    """
    module = defined(module, stated, config)
    bare = annotations_removed(module)
    source = module if _keeps(module, stated, config) else bare
    flat = flat_step(source, _count(stated), is_cut=_is_cut(bare, stated))
    if flat is not None:
        plain, sharding_lines = with_shardings_written(flat.module, stated, config)
        return plain, [*sharding_lines, *_notes(module, stated, config)[1], *flat.stated.lines()]
    module, sharding_lines = with_shardings_written(module, stated, config)
    keeps, notes = _notes(module, stated, config)
    return (module if keeps else annotations_removed(module)), [*sharding_lines, *notes]


def _notes(
    module: Module, stated: Mapping[str, object], config: str | None
) -> tuple[bool, list[str]]:
    """Return whether annotations stay, and what people should know of the module."""
    keeps = _keeps(module, stated, config)
    divides = keeps and may_be_followed(module)
    notes = module_notes(module, is_divided=divides)
    if divides and stated.get("ipus") == 1:
        notes = [
            *notes,
            "--ipus 1 takes as many IPUs as the module needs, one for each partition: its "
            "annotations divide arrays; --partition off leaves them whole",
        ]
    return keeps, notes


def _keeps(module: Module, stated: Mapping[str, object], config: str | None) -> bool:
    """Whether annotations that may divide arrays stay, for compiling to follow."""
    if not may_be_divided(module):
        return False
    asked = {"partition": stated["partition"]} if stated.get("partition") else {}
    attributes = read_frontend_attributes(module.attributes.text("frontend_attributes"))
    options = resolve("compile", asked, attributes=attributes, config=config).options
    return options.partition != "off"


def may_be_followed(module: Module) -> bool:
    """Whether compiling divides a module's arrays, as its annotations say, or refuses to."""
    try:
        return is_divided(module)
    except UnsupportedError:
        return True


def with_shardings_written(
    module: Module, stated: Mapping[str, object], config: str | None = None
) -> tuple[Module, list[str]]:
    """Return a verified module with the mesh and the shardings that options ask for.

    And what was written, for people. The same module, where options say nothing of it. `stated`:
    options of the call. Raises what `with_shardings` raises.
    """
    shardings = {name: stated[name] for name in ("mesh", "shard") if stated.get(name) is not None}
    asked = resolve("compile", shardings, config=config).options
    if asked.mesh is None and not asked.shard:
        return module, []
    from hloipu.sharding import with_shardings  # few ask for it

    annotated = with_shardings(module, stated, config)
    return annotated.module, list(annotated.lines)


def _count(stated: Mapping[str, object]) -> int | None:
    count = stated.get("micro_batches")
    return count if isinstance(count, int) else None


def _is_cut(module: Module, stated: Mapping[str, object]) -> bool:
    """Whether options cut a module that reads queues; others need not know."""
    if "infeed" not in module.source.text:
        return False
    from hloipu.step_elements import OF_CUTTING

    return any(stated.get(name) for name in OF_CUTTING | {"stages"})


def with_plain_loops(
    module: Module, stated: Mapping[str, object] = _NOTHING, config: str | None = None
) -> Module:
    """Return a verified module with the loops of Graphcore's encoding written out in HLO's own.

    Any other module is returned without annotations. Raises what `plain_step` does.
    """
    from hloipu_compiler.graphcore.encoding.plain_module import plain_module

    return plain_module(defined(module, stated, config))

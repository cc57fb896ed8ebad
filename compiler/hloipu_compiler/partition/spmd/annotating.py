"""Writes a mesh, and shardings of parameters and results by rules, into a text as JAX writes them.

Arrays that no rule matches keep what the text states of them; where it states nothing,
propagation decides. Texts without shardings become Shardy's, with XLA's tile assignments beside
them; texts that have tile assignments alone keep to these. Of a text for one device with named axes
the axes get sizes, and what it states without naming any is dropped: JAX leaves out axes of size 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hloipu_compiler.hlo.attributes.frontend_attributes import (
    frontend_attributes_text,
    read_frontend_attributes,
)
from hloipu_compiler.hlo.attributes.mesh import AxisRef, Mesh
from hloipu_compiler.hlo.attributes.named_sharding import DimensionSharding, NamedSharding
from hloipu_compiler.hlo.attributes.sharding import read_sharding
from hloipu_compiler.hlo.attributes.sharding_value import Sharding, ShardingKind
from hloipu_compiler.interpret.planning.sdy_text import SdyFault, read_meshes
from hloipu_compiler.ir.annotations import is_border
from hloipu_compiler.ir.attributes import Attributes, Raw, Value
from hloipu_compiler.ir.graph import Computation, Instruction, Module
from hloipu_compiler.ir.shapes import ArrayShape, TupleShape, leaves_of
from hloipu_compiler.partition.spmd.axes import axis_digits, device_axes, from_named, to_tiles
from hloipu_compiler.partition.spmd.parameter_rules import (
    OPEN,
    MeshSizes,
    Rule,
    Spec,
    entry_arrays,
    matched_arrays,
)
from hloipu_compiler.partition.spmd.reading import (
    CONSTRAINT,
    MESHES,
    RESULT,
    once_escaped,
    require_whole,
    stated_shardings,
)
from hloipu_compiler.passes.framework.attribute_edits import without
from hloipu_compiler.passes.framework.rewriting import Draft
from hloipu_compiler.plan.entry_arrays import result_arrays
from hloipu_runtime.errors import UsageError
from hloipu_runtime.frozen import dataclass

_SHARDING = "xla.sdy.sharding"
_MESH_NAME = "mesh"
_MOST_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Annotated:
    """A module with annotations, and what was written, for people."""

    module: Module
    lines: tuple[str, ...]


def annotated(module: Module, sizes: MeshSizes, rules: Sequence[Rule] = ()) -> Annotated:
    """Return a verified module with a mesh, and with its parameters divided as rules say.

    `sizes`: axes of the mesh; those of the text that are not named keep their sizes, and with no
    axes the text's own mesh stays. Raises UsageError E0477 for a module that is partitioned
    already, E0486 where the mesh does not go with what the text states, E0487 for a rule that
    holds for nothing, E0488 for a rule that does not fit what it matches; UnsupportedError E0476
    where shardings have no mesh in common.
    """
    require_whole(module)
    return _Annotating(module, sizes).annotated(rules)


def require_undivided(module: Module) -> None:
    """Raise UsageError E0486 for a verified module that states how several devices divide arrays.

    And E0477 for one that is partitioned already.
    """
    require_whole(module)
    annotating = _Annotating(module, ((_MESH_NAME, 1),))
    if not annotating.was_one_device or annotating.tiled_over > 1:
        raise UsageError(
            "E0486",
            "the text says already how arrays are divided",
            hint="leave --mesh auto out; --mesh AXIS=N gives its axes other sizes, and --shard "
            "other parameters other axes",
        )


def free_axis_names(module: Module) -> tuple[str, str]:
    """Return names for two axes that the meshes of a module's text do not have."""
    known = _Annotating(module, ((_MESH_NAME, 1),)).mesh.axis_names
    pairs = (("data", "model"), ("outer", "inner"), ("outer_axis", "inner_axis"))
    return next((p for p in pairs if not set(p) & set(known)), pairs[-1])


class _Annotating:
    def __init__(self, module: Module, sizes: MeshSizes) -> None:
        self.module = module
        self.header = read_frontend_attributes(module.attributes.text("frontend_attributes"))
        self.lines: list[str] = []
        self.old = self._old_meshes()
        self.was_one_device = all(mesh.device_count == 1 for mesh in self.old.values())
        counts = {_device_count(op) for c in module.computations for op in c.instructions}
        self.tiled_over = 0 if self.old else max(counts, default=0)
        """Devices of the tile assignments, in a text that has nothing else."""
        self.mesh = self._mesh(sizes)

    # ---- the mesh ---------------------------------------------------------------------------

    def _old_meshes(self) -> dict[str, Mesh]:
        try:
            meshes = read_meshes(once_escaped(self.header.get(MESHES, "{}")))
        except SdyFault as error:
            raise UsageError("E0486", f"the meshes of the text cannot be read: {error}") from error
        return {name: mesh for name, mesh in meshes.items() if not mesh.is_maximal}

    def _mesh(self, sizes: MeshSizes) -> Mesh:
        """Return the mesh that holds: axes of the text, then those that are named."""
        asked = dict(sizes)
        if spaced := next((name for name in asked if len(name.split()) != 1), None):
            raise UsageError(
                "E0486",
                f"the axis {spaced!r} has a space in its name",
                hint="name axes by one word each: --mesh data=2,model=4",
            )
        known: dict[str, int] = {}
        for mesh in self.old.values():
            known |= zip(mesh.axis_names, mesh.axis_sizes, strict=True)
        if len(self.old) == 1 and asked.items() <= known.items():
            return next(iter(self.old.values()))
        if not asked:
            raise UsageError(
                "E0486",
                f"the text has {len(self.old) or 'no'} meshes",
                hint="name the axes of the mesh, major to minor: --mesh data=2,model=4",
            )
        kept = {name: size for name, size in known.items() if name not in asked}
        joined = Mesh((*kept, *asked), (*kept.values(), *asked.values()))
        if self.tiled_over > 1 and self.tiled_over != joined.device_count:
            raise UsageError(
                "E0486",
                f"the text divides values over {self.tiled_over} devices, the mesh over "
                f"{joined.device_count}",
                hint="ask for as many devices: tile assignments do not say what more would do",
            )
        if any(asked.get(name, size) != size for name, size in known.items()):
            self._refuse_borders()
        if stay := [f"{name}={size}" for name, size in kept.items() if size > 1]:
            self.lines.append(f"axes of the text that --mesh does not name stay: {', '.join(stay)}")
        return joined

    def _refuse_borders(self) -> None:
        for computation in self.module.computations:
            for op in computation.instructions:
                if is_border(op):
                    error = UsageError(
                        "E0486",
                        f"{op.name} is the border of a region that is written for each device of "
                        "the text's own mesh",
                        hint="leave the sizes of its axes as they are",
                    )
                    error.span = self.module.span(op)
                    raise error

    def _is_divided(self) -> bool:
        """Whether the text says of anything how it is divided."""
        return any(
            "sharding" in op.attributes or "xla.sdy." in op.attributes.text("frontend_attributes")
            for computation in self.module.computations
            for op in computation.instructions
        )

    # ---- the text ---------------------------------------------------------------------------

    def annotated(self, rules: Sequence[Rule]) -> Annotated:
        sizes = dict(zip(self.mesh.axis_names, self.mesh.axis_sizes, strict=True))
        matched = matched_arrays(self.module, rules, sizes)
        axes = ", ".join(f"{name}={size}" for name, size in sizes.items() if size > 1)
        count = self.mesh.device_count
        self.lines.insert(0, f"mesh: {axes or 'no axes'}, {count} device{'s' * (count != 1)}")
        if count > 1 and not rules and not self._is_divided():
            self.lines.append(
                "nothing is divided over it, as the text has no shardings: --shard "
                "PARAMETER=AXES,… says what is, --mesh auto looks for it"
            )
        entry, ruled = self.module.entry, self._ruled(matched)
        results = self._ruled_results(matched)
        computations = tuple(
            self._computation(c, ruled, results) if c is entry else self._computation(c, {}, ())
            for c in self.module.computations
        )
        module = replace(self.module, computations=computations)
        said = ("sharding", "frontend_attributes")
        open_ones = tuple(
            not any(key in module.entry.instructions[i].attributes for key in said)
            for i in entry.parameters
        )
        values: dict[str, Value] = {
            "num_partitions": count,
            "allow_spmd_sharding_propagation_to_parameters": open_ones,
            "allow_spmd_sharding_propagation_to_output": (True,),
        }
        if self.tiled_over < 2:
            names = self.old or (_MESH_NAME,)
            meshes = ", ".join(f"{name} = {_mesh_text(self.mesh)}" for name in names)
            header = {**self.header, MESHES: f"{{{meshes}}}"}
            values["frontend_attributes"] = Raw(frontend_attributes_text(header))
        module = replace(module, attributes=self.module.attributes.replaced(**values))
        if self.tiled_over < 2:
            module = _with_tiles_beside(module)
        return Annotated(module, tuple(self.lines))

    def _ruled(self, matched: Mapping[int, Rule]) -> dict[int, list[Spec | None]]:
        """Return what rules say of the leaves of each parameter, by its position."""
        specs_by_parameter: dict[int, list[Spec | None]] = {}
        number = 0
        for position in self.module.entry.parameters:
            own: list[Spec | None] = []
            for leaf in leaves_of(self.module.entry.instructions[position].shape):
                is_array = leaf.element_type.name != "token"
                rule = matched.get(number) if is_array else None
                own.append(rule[1] if rule else None)
                number += is_array
            if any(spec is not None for spec in own):
                specs_by_parameter[position] = own
        return specs_by_parameter

    def _ruled_results(self, matched: Mapping[int, Rule]) -> list[Spec | None]:
        """Return what rules say of the leaves of the result; none where they say nothing."""
        leaves = result_arrays(self.module)
        first = len(entry_arrays(self.module)) - len(leaves)
        rules = [matched.get(first + array.number) for array in leaves]
        return [rule and rule[1] for rule in rules] if any(rules) else []

    def _computation(
        self,
        computation: Computation,
        ruled: Mapping[int, Sequence[Spec | None]],
        results: Sequence[Spec | None],
    ) -> Computation:
        instructions = []
        anew: list[str] = []
        for position, op in enumerate(computation.instructions):
            before = op.attributes
            if position in ruled:
                op = self._divided(op, ruled[position])
                if any(key in before for key in ("sharding", "frontend_attributes")):
                    anew.append(op.name)
            elif self.tiled_over < 2:
                op = op._replace(attributes=self._renewed(before))
            instructions.append(op)
        if anew:
            more = f" and {len(anew) - _MOST_SHOWN} more" if len(anew) > _MOST_SHOWN else ""
            self.lines.append(
                f"what the text says of {', '.join(anew[:_MOST_SHOWN])}{more} no longer counts: "
                "--shard says it anew"
            )
        annotated = replace(computation, instructions=tuple(instructions))
        return self._with_results(annotated, results) if results else annotated

    def _with_results(self, entry: Computation, specs: Sequence[Spec | None]) -> Computation:
        """Return the entry whose results state how they are divided, as JAX writes them."""
        draft = Draft(self.module, entry)
        for op in entry.instructions:
            draft.append(op)
        like, leaves = entry.instructions[entry.root], iter(specs)

        def marked(at: int) -> int:
            shape = draft.shape(at)
            if isinstance(shape, TupleShape):
                is_made_here = draft.made[at].opcode == "tuple"
                parts = draft.made[at].operands if is_made_here else elements(at, shape)
                return draft.add(like, "tuple", shape, [marked(part) for part in parts])
            spec = next(leaves)
            if spec is None:
                return at
            call = draft.add(like, "custom-call", shape, (at,), target)
            draft.made[call] = self._divided(draft.made[call], [spec])
            return call

        def elements(at: int, shape: TupleShape) -> list[int]:
            return [draft.element(like, at, n) for n in range(len(shape.elements))]

        target = Attributes({"custom_call_target": CONSTRAINT})
        if self.tiled_over < 2:
            target = Attributes({"custom_call_target": RESULT, "custom_call_has_side_effect": True})
        root = marked(entry.root)
        return replace(entry, instructions=tuple(draft.made), root=root)

    def _divided(self, op: Instruction, specs: Sequence[Spec | None]) -> Instruction:
        """Return a parameter that states what rules say of its leaves."""
        named = [
            self._named(spec, leaf) for spec, leaf in zip(specs, leaves_of(op.shape), strict=True)
        ]
        if self.tiled_over > 1:
            digits = (digit for group in axis_digits(self.mesh, ()) for digit in group)
            axes = device_axes(digits, self.tiled_over, ())
            tiles = [to_tiles(from_named(n, len(n.dimensions), axes), axes) for n in named]
            return op._replace(attributes=op.attributes.replaced(sharding=_tile_text(op, tiles)))
        known = read_frontend_attributes(op.attributes.text("frontend_attributes"))
        texts = [_named_text(n, next(iter(self.old), _MESH_NAME)) for n in named]
        is_tuple = isinstance(op.shape, TupleShape) or op.parameter_number < 0
        text = f"_per_value<[{', '.join(texts)}]>" if is_tuple else texts[0]
        known[_SHARDING] = f"#sdy.sharding{text}"
        return op._replace(
            attributes=op.attributes.replaced(
                frontend_attributes=Raw(frontend_attributes_text(known))
            )
        )

    def _named(self, spec: Spec | None, leaf: ArrayShape) -> NamedSharding:
        """Return a spec as a sharding; of what no rule speaks all dimensions are open."""
        rank = len(leaf.dimensions)
        each = ((OPEN,),) * rank if spec is None else (*spec, *((),) * (rank - len(spec)))
        at = self.mesh.axis_position
        return NamedSharding(
            self.mesh,
            tuple(
                DimensionSharding(
                    tuple(AxisRef(at[axis]) for axis in axes if axis != OPEN), OPEN not in axes
                )
                for axes in each
            ),
        )

    def _renewed(self, attributes: Attributes) -> Attributes:
        """Return attributes without what a text for one device states and names no axis for."""
        if not self.was_one_device or "frontend_attributes" not in attributes:
            return attributes
        known = read_frontend_attributes(attributes.text("frontend_attributes"))
        text = known.get(_SHARDING, "")
        if not text or '"' in text:
            return attributes
        known[_SHARDING] = text.replace("{}", "{?}")
        return attributes.replaced(frontend_attributes=Raw(frontend_attributes_text(known)))


def _device_count(op: Instruction) -> int:
    """Return over how many devices an op's tile assignment divides its value."""
    text = op.attributes.text("sharding")
    return (read_sharding(text).device_count or 0) if "devices=" in text else 0


def _mesh_text(mesh: Mesh) -> str:
    pairs = zip(mesh.axis_names, mesh.axis_sizes, strict=True)
    axes = ", ".join(f'"{name}"={size}' for name, size in pairs)
    listed = mesh.devices.devices(mesh.device_count) if not mesh.devices.is_plain else ()
    order = f", device_ids={list(listed)}" if listed else ""
    return f"#sdy.mesh<[{axes}]{order}>"


def _named_text(sharding: NamedSharding, mesh: str) -> str:
    """Return a sharding as Shardy prints it, its mesh by name."""
    each = []
    for dimension in sharding.dimensions:
        names = [f'"{sharding.mesh.axis_names[ref.axis]}"' for ref in dimension.axes]
        each.append(f"{{{', '.join(names + ['?'] * (not dimension.is_closed))}}}")
    return f"<@{mesh}, [{', '.join(each)}]>"


def _tile_text(op: Instruction, tiles: Sequence[Sharding]) -> Raw:
    if isinstance(op.shape, TupleShape):
        return Raw(str(Sharding(ShardingKind.TUPLE, elements=tuple(tiles))))
    return Raw(str(tiles[0]))


def _with_tiles_beside(module: Module) -> Module:
    """Return a Shardy text with the tile assignments that say the same, and no others."""
    stated = stated_shardings(module)

    def renewed(computation: Computation, position: int, op: Instruction) -> Instruction:
        if op.opcode in ("infeed", "outfeed"):
            return op
        own = stated.shardings.get((computation.name, position), ())
        bare = without(op.attributes, ("sharding",))
        tiles = [to_tiles(sharding, stated.axes) for sharding in own if sharding is not None]
        if tiles:
            bare = bare.replaced(sharding=_tile_text(op, tiles))
        return op._replace(attributes=bare)

    computations = tuple(
        replace(c, instructions=tuple(renewed(c, i, op) for i, op in enumerate(c.instructions)))
        for c in module.computations
    )
    return replace(module, computations=computations)

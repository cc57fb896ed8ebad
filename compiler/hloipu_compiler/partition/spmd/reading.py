"""What a module's text states about shardings: of which values, in which dialect, on which mesh.

A text with meshes in its header is Shardy's: frontend attributes count, and `sharding=` beside them
does not, but on infeeds and outfeeds. Any other text is GSPMD's: `sharding=` counts. Source:
openxla/xla `xla/service/spmd/shardy/sdy_round_trip/import_shardy_attrs.cc`, `import_callback_
custom_calls.cc`; `xla/service/spmd/spmd_partitioner.cc` (PreprocessSharding).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from hloipu_compiler.hlo.attributes.frontend_attributes import read_frontend_attributes
from hloipu_compiler.hlo.attributes.mesh import DeviceOrder, Mesh
from hloipu_compiler.hlo.attributes.named_sharding import NamedSharding
from hloipu_compiler.hlo.attributes.sharding import read_sharding
from hloipu_compiler.hlo.attributes.sharding_value import Sharding, ShardingKind
from hloipu_compiler.hlo.syntax.text_fault import TextFault
from hloipu_compiler.interpret.planning.device_blocks import Digit
from hloipu_compiler.interpret.planning.sdy_text import (
    SdyFault,
    read_manual_axes,
    read_meshes,
    read_shardings,
)
from hloipu_compiler.ir.annotations import (
    FED,
    GSPMD_IN,
    GSPMD_OUT,
    SHARDY_IN,
    SHARDY_OUT,
    is_border,
)
from hloipu_compiler.ir.graph import Instruction, Module
from hloipu_compiler.ir.ops import COLLECTIVES
from hloipu_compiler.ir.shapes import leaves_of
from hloipu_compiler.partition.spmd.axes import (
    AxisFault,
    AxisSharding,
    DeviceAxes,
    axis_digits,
    bits,
    device_axes,
    from_named,
    from_tiles,
    ref_digits,
    tile_digits,
)
from hloipu_compiler.verify.sharding_forms import leaf_shardings
from hloipu_runtime.errors import UnsupportedError, UsageError
from hloipu_runtime.frozen import dataclass

Key = tuple[str, int]
"""A computation's name and a position in it."""
AnySharding = Sharding | NamedSharding

MESHES = "xla.sdy.meshes"
CONSTRAINT, RESULT, GROUP = "Sharding", "xla.sdy.FuncResultSharding", "xla.sdy.ShardingGroup"


@dataclass(frozen=True, slots=True)
class Border:
    """The border of a manual region in Shardy's words."""

    wholes: tuple[AxisSharding, ...]
    """How the values outside are divided, leaf by leaf."""
    manual: int
    """Bits of the parts along which the region is written for each device."""
    enters: bool


@dataclass(frozen=True, slots=True)
class Stated:
    """All that a module's text states."""

    axes: DeviceAxes
    is_shardy: bool
    shardings: Mapping[Key, tuple[AxisSharding | None, ...]]
    """Of results, leaf by leaf."""
    borders: Mapping[Key, Border]
    groups: Mapping[Key, str]
    """The sharding group of an op's result, or of the operand of a call that only names one."""
    reordered: int = 0
    """Number of shardings whose blocks go to devices in the mesh's order, not in their own."""


def partitioned_already(module: Module) -> str:
    """Return by what a text shows that it is written for each device; empty where it does not.

    Such texts keep shardings on parameters whose shapes are those of blocks. They must not be
    partitioned again.
    """
    header = read_frontend_attributes(module.attributes.text("frontend_attributes"))
    everything = [x for c in module.computations for x in c.instructions]
    if MESHES in header or any(map(is_border, everything)):
        return ""
    if module.entry.name.endswith("_spmd"):
        return f"its entry is named {module.entry.name}"
    if module.attributes.flag("is_scheduled"):
        return "it is scheduled"
    for x in everything:
        if x.opcode in COLLECTIVES or x.opcode == "partition-id":
            return f"it has the {x.opcode} {x.name}"
    return ""


def require_whole(module: Module) -> None:
    """Raise UsageError E0477 for a module that is partitioned already."""
    if reason := partitioned_already(module):
        raise UsageError(
            "E0477",
            f"the module is written for each device already: {reason}",
            hint="its shardings are of whole arrays and its shapes of blocks; take the text from "
            "before partitioning",
        )


_ONE_MESH = "state all shardings by the axes of one mesh"


def stated_shardings(module: Module) -> Stated:
    """Return what a verified module states about shardings.

    Raises UnsupportedError E0476 where the shardings have no mesh in common, or cannot be read.
    """
    return _Reader(module).stated()


def not_followed(
    module: Module, why: str, x: Instruction | None, hint: str = _ONE_MESH
) -> UnsupportedError:
    """Return the error of a sharding, of an op or of none, that cannot be followed."""
    where = f"the sharding of {x.name}" if x else "the shardings of the module"
    error = UnsupportedError("E0476", f"{where} cannot be followed: {why}", hint=hint)
    error.span = module.span(x) if x else None
    return error


class _Reader:
    """Reads every text once."""

    def __init__(self, module: Module) -> None:
        self.module = module
        header = read_frontend_attributes(module.attributes.text("frontend_attributes"))
        self.is_shardy = MESHES in header
        self.meshes: dict[str, Mesh] = {}
        if self.is_shardy:
            try:
                self.meshes = read_meshes(once_escaped(header[MESHES]))
            except SdyFault as error:
                raise self._fault(str(error), None) from error
        self.texts: dict[str, tuple[AnySharding, ...]] = {}
        self.given: dict[Key, tuple[AnySharding, ...]] = {}
        """By op; one for each leaf, or one for all."""
        self.manual_names: dict[Key, tuple[str, ...]] = {}
        self.groups: dict[Key, str] = {}
        self.reordered = 0
        self.numbers: tuple[int, ...] = ()
        """Of the devices in the text, where it does not count from 0."""

    def stated(self) -> Stated:
        for computation in self.module.computations:
            for position, x in enumerate(computation.instructions):
                if "sharding" in x.attributes or "frontend_attributes" in x.attributes:
                    try:
                        self._read((computation.name, position), x)
                    except SdyFault as error:
                        raise self._fault(str(error), x) from error
                    except TextFault as error:
                        raise self._fault(error.message, x) from error
        try:
            axes = self._axes()
            return self._by_axes(axes)
        except AxisFault as error:
            raise self._fault(str(error), None) from error

    def _fault(self, why: str, x: Instruction | None) -> UnsupportedError:
        return not_followed(self.module, why, x)

    def _read(self, key: Key, x: Instruction) -> None:
        target = x.attributes.text("custom_call_target")
        if x.opcode == "outfeed":
            return  # What is said is of its operand: `partitioning` puts it there.
        if not self.is_shardy:
            text = x.attributes.text("sharding")
            if text:
                self.given[key] = shardings = self._cached(text, x)
                group = next((s.shard_group for s in shardings if isinstance(s, Sharding)), "")
                if group:
                    self.groups[key] = group.split()[-1]
            return
        if x.opcode not in ("infeed", "parameter", "custom-call"):
            return
        said = read_frontend_attributes(x.attributes.text("frontend_attributes"))
        if x.opcode == "infeed" or FED in said:
            if text := x.attributes.text("sharding"):
                self.given[key] = self._cached(text, x)
            return
        if target == GROUP:
            self.groups[key] = said.get("xla.sdy.sharding_group_id", "").split(":")[0].strip()
        name = {SHARDY_IN: "xla.sdy.in_shardings", SHARDY_OUT: "xla.sdy.out_shardings"}
        text = said.get(name.get(target, "xla.sdy.sharding"), "")
        if text:
            self.given[key] = self._cached(once_escaped(text), x)
        if target in name:
            axes = said.get("xla.sdy.manual_axes", "#sdy<manual_axes{}>")
            self.manual_names[key] = read_manual_axes(once_escaped(axes))

    def _cached(self, text: str, x: Instruction) -> tuple[AnySharding, ...]:
        known = self.texts.get(text)
        if known is None:
            if text.startswith("#sdy"):
                known = read_shardings(text, self.meshes)
            else:
                sharding = read_sharding(text)
                tuple_of = sharding.kind is ShardingKind.TUPLE
                known = leaf_shardings(sharding, x.shape) if tuple_of else (sharding,)
            self.texts[text] = known
        return known

    def _axes(self) -> DeviceAxes:
        """Return the mesh that has every axis, part and tile of the module."""
        try:
            return self._common_axes()
        except AxisFault:
            with suppress(AxisFault):
                return self._common_axes(only_used=True)
            if not self._reorder():
                raise
            return self._common_axes(only_used=True)

    def _common_axes(self, *, only_used: bool = False) -> DeviceAxes:
        """Return the mesh of all meshes, or of those by whose axes something is divided."""
        each = [s for shardings in self.texts.values() for s in shardings]
        named = [n for s in each if (n := s if isinstance(s, NamedSharding) else s.named)]
        if only_used and not self.manual_names:
            named = [n for n in named if n.axes]
        tiles = [s for s in each if isinstance(s, Sharding) and s.kind is ShardingKind.TILED]
        meshes = [n.mesh for n in named if not n.mesh.is_maximal and n.mesh.device_count > 1]
        counts = {m.device_count for m in meshes} | {s.device_count or 0 for s in tiles}
        # A mesh of other devices of which no sharding speaks says nothing.
        listed = () if only_used else self.meshes.values()
        unused = [m for m in listed if not m.is_maximal and m.device_count > 1]
        meshes = [*(m for m in unused if not counts or m.device_count in counts), *meshes]
        meshes = list(dict.fromkeys(meshes))
        counts |= {m.device_count for m in meshes}
        if len(counts) > 1:
            raise AxisFault(f"they are for {' and for '.join(map(str, sorted(counts)))} devices")
        stated = self.module.attributes.integer("num_partitions", 1)
        count = counts.pop() if counts else stated
        devices = _base_order(meshes, tiles, count)
        if devices and sorted(devices) != list(range(count)):
            raise AxisFault(f"the devices {list(devices)[:8]} are not 0 to {count - 1}, each once")
        common = device_axes(_all_digits(meshes, named, tiles, devices), count, devices)
        names: dict[str, tuple[int, ...]] = {}
        for mesh in meshes:
            for name, own in zip(mesh.axis_names, axis_digits(mesh, devices), strict=True):
                names.setdefault(name, common.parts(own))
        numbers = self.numbers if len(self.numbers) == count else ()
        return replace(common, names=tuple(names.items()), numbers=numbers)

    def _reorder(self) -> int:
        """Count devices anew from 0, and give orders that no mesh then has that of their numbers.

        What lists some of the devices only has its blocks on all, several on each block. Return how
        many shardings that changes. Where no manual region names devices, the device that has a
        block is nothing that a value depends on.
        """
        each = [x for c in self.module.computations for x in c.instructions]
        shardings = dict.fromkeys(s for several in self.texts.values() for s in several)
        if any(map(is_border, each)) or any(
            isinstance(s, Sharding) and ShardingKind.MANUAL in s.subgroups for s in shardings
        ):
            return 0
        tiles = [s for s in shardings if isinstance(s, Sharding) and s.kind is ShardingKind.TILED]
        listed = {d for s in tiles for d in s.devices.listed}
        place = {device: place for place, device in enumerate(sorted(listed))}
        if all(s.devices.listed for s in tiles) and tuple(place) != tuple(place.values()):
            self.numbers = tuple(place)
        most = max((s.device_count or 0 for s in tiles), default=0)
        changed = {s: new for s in shardings if (new := _in_one_order(s, place, most)) != s}
        self.reordered = len(changed)

        def own(several: tuple[AnySharding, ...]) -> tuple[AnySharding, ...]:
            return tuple(changed.get(s, s) for s in several)

        self.texts = {text: own(several) for text, several in self.texts.items()}
        self.given = {key: own(several) for key, several in self.given.items()}
        self.meshes = {name: _numbered(mesh) for name, mesh in self.meshes.items()}
        return self.reordered

    def _by_axes(self, axes: DeviceAxes) -> Stated:
        known: dict[tuple[int, int], AxisSharding] = {}

        def converted(sharding: AnySharding, rank: int) -> AxisSharding:
            named = sharding if isinstance(sharding, NamedSharding) else sharding.named
            key = (id(sharding), rank)
            if key not in known:
                known[key] = (
                    from_named(named, rank, axes)
                    if named is not None
                    else from_tiles(sharding, rank, axes)  # type: ignore[arg-type]
                )
            return known[key]

        shardings: dict[Key, tuple[AxisSharding | None, ...]] = {}
        borders: dict[Key, Border] = {}
        for (name, position), stated in self.given.items():
            computation = self.module.computation[name]
            x = computation.instructions[position]
            enters = x.attributes.text("custom_call_target") == SHARDY_IN
            shapes = [computation.instructions[i].shape for i in x.operands]
            arrays = [a for s in (shapes if enters else [x.shape]) for a in leaves_of(s)]
            if len(stated) == 1:
                stated = stated * len(arrays)
            if len(stated) != len(arrays):
                raise self._fault(f"{len(stated)} stand for {len(arrays)} arrays", x)
            each = tuple(
                converted(s, len(a.dimensions)) for s, a in zip(stated, arrays, strict=True)
            )
            if any(
                len(s.dimensions) != len(a.dimensions) for s, a in zip(each, arrays, strict=True)
            ):
                raise self._fault("it has another number of dimensions than the value", x)
            if not self.is_shardy and x.attributes.text("custom_call_target") in _LEAVING_OPEN:
                each = tuple(_with_open(s, x.backend_config) for s in each)
            if (name, position) in self.manual_names:
                manual = self._manual((name, position), stated, axes, x)
                borders[name, position] = Border(each, manual, enters)
            else:
                shardings[name, position] = each
        if not self.is_shardy:
            self._let_choose(shardings)
        return Stated(axes, self.is_shardy, shardings, borders, self.groups, self.reordered)

    def _let_choose(self, shardings: dict[Key, tuple[AxisSharding | None, ...]]) -> None:
        """Open or close what the entry takes and gives, as the header lets propagation choose.

        `{false}`, XLA's default, says nothing; Shardy's texts say it of each dimension. Source:
        openxla/xla `xla/service/sharding_propagation.cc` (SupportSpatialPartitioning),
        `xla/service/spmd/shardy/stablehlo_round_trip/stablehlo_import.cc` (openDims).
        """
        entry = self.module.entry
        for border, positions in (("parameters", entry.parameters), ("output", (entry.root,))):
            name = f"allow_spmd_sharding_propagation_to_{border}"
            words = self.module.attributes.integers(name)
            if words in ((), (False,)):
                continue
            leaves = {i: leaves_of(entry.instructions[i].shape) for i in positions}
            count = sum(map(len, leaves.values()))
            if len(words) == 1:
                words = words * count
            elif len(words) == len(positions):
                each = zip(words, leaves.values(), strict=True)
                words = tuple(word for word, own in each for _ in own)
            if len(words) != count:
                why = f"{name} has {len(words)} words for {count} arrays"
                hint = "say true or false once for all, or once for each of them"
                raise not_followed(self.module, why, None, hint)
            rest = iter(words)
            for i, own in leaves.items():
                known = shardings.get((entry.name, i), (None,) * len(own))
                chosen = tuple(
                    _chosen(sharding, bool(next(rest)), len(leaf.dimensions))
                    for sharding, leaf in zip(known, own, strict=True)
                )
                if any(chosen):
                    shardings[entry.name, i] = chosen

    def _manual(
        self, key: Key, stated: Sequence[AnySharding], axes: DeviceAxes, x: Instruction
    ) -> int:
        """Return the parts of a border's manual axes, of the mesh that divides its arrays."""
        names = self.manual_names[key]
        own_meshes = [s.mesh for s in stated if isinstance(s, NamedSharding)]
        for mesh in (*own_meshes, *self.meshes.values()):
            if all(name in mesh.axis_position for name in names):
                own = axis_digits(mesh, axes.devices)
                places = [mesh.axis_position[name] for name in names]
                return bits(p for place in places for p in axes.parts(own[place]))
        raise self._fault(f"no mesh has the axes {', '.join(names)}", x)


def _chosen(sharding: AxisSharding | None, is_free: bool, rank: int) -> AxisSharding | None:
    """Return a sharding that is open where propagation may choose, and closed where it may not."""
    if is_free and sharding is not None and sharding.device < 0:
        return replace(sharding, closed=(False,) * rank)
    if not is_free and sharding is None:
        return AxisSharding(((),) * rank, (True,) * rank)
    return sharding


_LEAVING_OPEN = (CONSTRAINT, GSPMD_IN, GSPMD_OUT)
"""Targets of GSPMD's calls that may leave dimensions to propagation."""
_UNSPECIFIED = re.compile(r"unspecified_dims=\[([0-9, ]*)\]")


def _with_open(sharding: AxisSharding, config: str) -> AxisSharding:
    """Return GSPMD's constraint with the dimensions open that it leaves to propagation.

    Source: jax-ml/jax `jax/_src/interpreters/mlir.py` (wrap_with_sharding_op).
    """
    said = _UNSPECIFIED.search(config)
    free = {int(n) for n in said[1].split(",") if n.strip()} if said else set()
    closed = tuple(c and d not in free for d, c in enumerate(sharding.closed))
    return replace(sharding, closed=closed)


def once_escaped(text: str) -> str:
    """Undo a second escaping of quotes, which texts of 2024 have."""
    return text.replace('\\"', '"')


def _base_order(meshes: Sequence[Mesh], tiles: Sequence[Sharding], count: int) -> tuple[int, ...]:
    """Return the order of devices by which all count; empty for their own order."""
    for mesh in meshes:
        if not _counts(mesh):
            return mesh.devices.listed
    for sharding in tiles:
        listed = sharding.devices.listed
        if len(listed) == count and not sharding.subgroups:
            try:
                tile_digits(sharding, ())
            except AxisFault:
                return listed
    return ()


def _counts(mesh: Mesh) -> bool:
    """Whether the axes of a mesh are digits of the numbers of its devices."""
    try:
        axis_digits(mesh, ())
    except AxisFault:
        return False
    return True


def _in_one_order(sharding: AnySharding, place: Mapping[int, int], most: int) -> AnySharding:
    """Return a sharding of a mesh of devices in their own order.

    `place`: of each device that some tile assignment lists, among all of these. `most`: devices
    that one has; those that list less get a replicated dimension, or are replicated.
    """
    if isinstance(sharding, NamedSharding):
        return replace(sharding, mesh=_numbered(sharding.mesh))
    if sharding.named is not None:
        return replace(sharding, named=replace(sharding.named, mesh=_numbered(sharding.named.mesh)))
    listed, count = sharding.devices.listed, sharding.device_count or 0
    if sharding.kind is not ShardingKind.TILED or len(set(listed)) != count:
        return sharding
    if count == len(place):
        listed = tuple(place[device] for device in listed)
        sharding = replace(sharding, devices=DeviceOrder(listed=listed))
    if listed and count < most:
        if most % count or sharding.subgroups or sharding.last_tile_dim_replicate:
            return Sharding(ShardingKind.REPLICATED)
        tiles, order = (*sharding.tile_dimensions, most // count), DeviceOrder(reshape=(most,))
        return Sharding(ShardingKind.TILED, tiles, order, last_tile_dim_replicate=True)
    try:
        tile_digits(sharding, ())
        fits = sorted(listed) == list(range(count))
    except AxisFault:
        fits = False
    return sharding if fits else replace(sharding, devices=DeviceOrder(reshape=(count,)))


def _numbered(mesh: Mesh) -> Mesh:
    """Return a mesh whose axes are digits of the devices' numbers."""
    listed = mesh.devices.listed
    if mesh.is_maximal or sorted(listed) != list(range(mesh.device_count)) or _counts(mesh):
        return mesh
    return replace(mesh, devices=DeviceOrder())


def _all_digits(
    meshes: Sequence[Mesh],
    named: Sequence[NamedSharding],
    tiles: Sequence[Sharding],
    devices: Sequence[int],
) -> Iterator[Digit]:
    axes = {mesh: axis_digits(mesh, devices) for mesh in meshes}
    for groups in axes.values():
        for group in groups:
            yield from group
    for sharding in named:
        if sharding.mesh not in axes:
            continue
        for ref in sharding.axes:
            yield from ref_digits(ref, sharding.mesh, axes[sharding.mesh])
    for tiled in tiles:
        yield from tile_digits(tiled, devices).all()

"""Barrier rule: a sync of all participants right before what crosses tiles.

An exchange is scheduled from the sync on, cycle by cycle, without a word between the tiles. So
whatever writes what is sent, or uses what is overwritten, must be over on every tile when it
begins. What comes after an exchange needs no barrier: each tile sends and receives in its own
order. Decisions, the ends of a pipeline's slots, and requests to remote memory bring barriers of
their own: the time of an access (`remote.access_nanoseconds`) begins when all tiles have asked.

A sync serves the steps right behind it in the same sequence, so that it stands on every path to
them, through loops, branches and calls.

Transfers that stay on their tiles need none. Where a tile's part of some dimensions is a run of
their row-major order, it begins at a number of elements that grows evenly along each axis of the
grid. Two layouts are the same if these numbers are, however their axes are split and their
dimensions cut.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from hloipu_runtime.program import steps as s
from hloipu_runtime.program.collective import Collective
from hloipu_runtime.program.faults import Fault
from hloipu_runtime.program.mapping import Box, Mapping, Sizes, extent_of, volume, whole_box
from hloipu_runtime.program.program import Program, Variable
from hloipu_runtime.program.relation import dimension_groups, has_parts
from hloipu_runtime.program.steps import Transfer
from hloipu_runtime.program.uses import used


class _Met(NamedTuple):
    """Barrier state where a step begins."""

    ipus: int = 0
    """So many have met, and nothing was done since; 1: the tiles of each IPU; 0: nobody."""
    phase: str = ""
    """What was begun since then, if more of its kind may follow."""


_NOBODY = _Met()
_PHASES = {s.StreamIn: "data from the host", s.StreamOut: "data to the host"}


def barrier_faults(program: Program) -> list[Fault]:
    """Return the steps that reach other tiles, IPUs or the host without a sync right before.

    One walk over the steps; only exchanges without a sync are looked at more closely.
    """
    walk = _Walk(program)
    walk.sequence(program.body, program.ipus, _NOBODY, "body")
    for name, body in program.functions.items():
        walk.sequence(body, program.ipus, _NOBODY, name)
    return walk.faults


@dataclass(slots=True)
class _Walk:
    """Goes once through the tree of steps."""

    program: Program
    faults: list[Fault] = field(default_factory=list)

    def sequence(self, body: s.Sequence, ipus: int, met: _Met, place: str) -> _Met:
        """Check a sequence on some number of IPUs; return the state after it."""
        for number, step in enumerate(body.steps):
            met = self.step(step, ipus, met, f"{place}/{number}")
        return met

    def step(self, step: s.Step, ipus: int, met: _Met, place: str) -> _Met:
        match step:
            case s.Sync():
                # Where only some of the IPUs meet, which ones is not said: none can rely on it.
                together = ipus if step.ipus >= ipus else 1
                return _Met(together if met.phase else max(together, met.ipus))
            case s.Sequence():
                return self.sequence(step, ipus, met, place)
            case s.Exchange():
                self._need(self._meeting_of(step, ipus, met), met, f"{place} {step.name}".rstrip())
            case Collective():
                places = {self._ipu(moved.variable) for moved in (*step.inputs, *step.outputs)}
                self._need(ipus if len(places) > 1 else 1, met, f"{place} {step.name}".rstrip())
            case s.StreamIn() | s.StreamOut():
                return self._phase(step, met, place)
            case s.Pipeline():
                for position, stage in enumerate(step.stages):
                    for block in stage.blocks:
                        where = f"{place}/repeat/{position}"
                        self.sequence(block, len(stage.ipus), _NOBODY, where)
            case s.Parallel():
                for number, branch in enumerate(step.branches):
                    branch_ipus = {self._ipu(v) for v in used(branch, self.program)}
                    self.sequence(branch, max(1, len(branch_ipus)), _NOBODY, f"{place}|{number}")
            case _:
                for number, block in enumerate(s.blocks_of(step)):
                    self.sequence(block, ipus, _NOBODY, f"{place}/{number}")
        return _NOBODY

    def _need(self, ipus: int, met: _Met, place: str) -> None:
        """Check that enough IPUs have met, and that nothing was done since."""
        if met.ipus < ipus or (ipus and met.phase):
            who = "the tiles" if ipus == 1 else f"{ipus} IPUs"
            self.faults.append(Fault("barrier", place, f"no sync of {who} stands right before it"))

    def _phase(self, step: s.Step, met: _Met, place: str) -> _Met:
        """Check a step that may share a sync with others of its kind; return what holds then."""
        phase = _PHASES[type(step)]
        if not met.ipus or met.phase not in ("", phase):
            message = f"no sync of the tiles stands right before {phase}"
            self.faults.append(Fault("barrier", place, message))
        return _Met(max(1, met.ipus), phase)

    def _meeting_of(self, step: s.Exchange, ipus: int, met: _Met) -> int:
        if ipus > 1 and any(
            self._crosses_ipus(transfer) for transfer in step.transfers if volume(transfer.box)
        ):
            return ipus
        if met.ipus and not met.phase:
            return 1  # whether anything crosses tiles makes no difference
        variables = self.program.variables
        stays = all(
            stays_on_tiles(transfer, variables[transfer.source], variables[transfer.destination])
            for transfer in step.transfers
        )
        return 0 if stays else 1

    def _crosses_ipus(self, transfer: s.Transfer) -> bool:
        return self._ipu(transfer.source) != self._ipu(transfer.destination)

    def _ipu(self, variable: s.VariableId) -> int:
        return self.program.variables[variable].ipu


class _Axis(NamedTuple):
    """Tiles in a row, and by how many elements their runs begin further on."""

    stride: int
    extent: int
    steps: Sizes
    """Of each group of dimensions."""


class _Layout(NamedTuple):
    """The run of each group of dimensions on every tile."""

    first: int
    axes: tuple[_Axis, ...]
    runs: tuple[tuple[int, int], ...]
    """Where the first tile's begins, and how long it is; cut off at the ends of the group."""


class _Run(NamedTuple):
    """A mapping's part of a group of dimensions."""

    start: int
    length: int
    steps: dict[int, int]
    """Along grid axes."""


def stays_on_tiles(transfer: Transfer, source: Variable, destination: Variable) -> bool:
    """Whether each tile already has, in the source, all that it receives.

    Never wrongly true; false also for some transfers of boxes, and where tiles have more than that.
    """
    if not volume(transfer.box):
        return True
    if source.ipu != destination.ipu or transfer.tiles != destination.mapping.tiles:
        return False
    if transfer.spans != destination.mapping.spans or any(transfer.shift):
        return False
    return _lie_alike(
        source.mapping, source.shape, destination.mapping, transfer.view, transfer.box
    )


@lru_cache(1 << 12)
def _lie_alike(source: Mapping, shape: Sizes, destination: Mapping, view: Sizes, box: Box) -> bool:
    if box != whole_box(view):
        return False
    if source == destination and shape == view:
        return True
    groups = dimension_groups(view, shape)
    source_layout = _layout(source, shape, [sources for _, sources in groups])
    return source_layout is not None and source_layout == _layout(
        destination, view, [targets for targets, _ in groups]
    )


def _layout(mapping: Mapping, shape: Sizes, groups: list[list[int]]) -> _Layout | None:
    """Return the runs of a mapping; None where its parts are none."""
    for span, size in zip(mapping.spans, shape, strict=True):
        if size == 1 and has_parts(span, size):
            return None
    runs = [_run(mapping, shape, group) for group in groups]
    whole_runs = [run for run in runs if run is not None]
    if len(whole_runs) < len(runs):
        return None
    tiles = mapping.tiles
    axes = sorted(
        _Axis(stride, extent, tuple(run.steps.get(number, 0) for run in whole_runs))
        for number, (stride, extent) in enumerate(zip(tiles.strides, tiles.extents, strict=True))
    )
    return _Layout(tiles.first, _joined(axes), tuple((run.start, run.length) for run in whole_runs))


def _run(mapping: Mapping, shape: Sizes, group: list[int]) -> _Run | None:
    """Return what every tile has of some dimensions; None where that is no run of their order."""
    start, length, inner = 0, 1, 1
    steps: dict[int, int] = {}
    is_cut = False
    for place in reversed(group):
        span, size = mapping.spans[place], shape[place]
        if is_cut and span.size != 1:
            return None
        if has_parts(span, size):
            end = (extent_of(mapping.tiles, span) - 1) * span.step + span.offset + span.size
            if place != group[0] and (span.offset < 0 or end > size):
                return None  # a part cut short would end the run early
            is_cut = True
            start += span.offset * inner
            length *= span.size
            if span.axis >= 0:
                steps[span.axis] = span.step * inner
        else:
            length *= size
        inner *= size
    return _Run(start, length, steps)


def _joined(axes: list[_Axis]) -> tuple[_Axis, ...]:
    """Return axes, finest first, with those joined that go on where the one before ends."""
    joined: list[_Axis] = []
    for axis in axes:
        if joined:
            last = joined[-1]
            further = tuple(last.extent * step for step in last.steps)
            if axis.stride == last.extent * last.stride and axis.steps == further:
                joined[-1] = last._replace(extent=last.extent * axis.extent)
                continue
        joined.append(axis)
    return tuple(joined)

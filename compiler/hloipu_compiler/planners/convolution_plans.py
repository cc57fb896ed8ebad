"""How a convolution was planned, for a reader: its grid, and the best of those that lost."""

from hloipu_compiler.planners.convolution_grids import (
    Bounds,
    ConvolutionGrid,
    PlacedOperand,
    convolution_grid,
    convolution_grids,
)
from hloipu_compiler.planners.planned import Choice, PlannedOp, losers, shape_texts, splits_of
from hloipu_runtime.codelets.core.codelet import Tensor
from hloipu_runtime.codelets.dense.convolution import Convolution
from hloipu_runtime.machine.model import Machine


def planned_convolution(
    name: str,
    machine: Machine,
    codelet: Convolution,
    operands: tuple[Tensor, Tensor],
    result: Tensor,
    partial_type: str,
    bounds: Bounds,
    lying: PlacedOperand,
) -> PlannedOp:
    """Return the record of a convolution's plan."""
    chosen = convolution_grid(machine, codelet, operands, result, partial_type, bounds, lying)
    others = convolution_grids(machine, codelet, operands, result, partial_type, bounds, lying)
    choice = _choice(codelet, chosen)
    return PlannedOp(
        name,
        "convolution",
        shape_texts(operands),
        shape_texts([result]),
        choice,
        losers(choice, [_choice(codelet, x) for x in others], bounds.budget_bytes),
    )


def _choice(codelet: Convolution, x: ConvolutionGrid) -> Choice:
    spatial = [f"position {number}" for number in range(len(codelet.window))]
    features = "groups" if codelet.feature_groups * codelet.batch_groups > 1 else "features"
    sums = ["taps" if along else "input features" for along, _ in x.cut.parts]
    images = ["images"] if codelet.batch_groups == 1 else []
    names = [*sums, features, *images, *spatial]
    words = (
        f"{' and '.join(dict.fromkeys(sums))} in {x.cut.pieces} pieces"
        if sums
        else "each sum whole on a tile"
    )
    details: tuple[tuple[str, str | int], ...] = ()
    if x.slices > 1:
        details = ((f"slices of {'features' if x.slices_features else 'images'}", x.slices),)
    return Choice(
        words,
        splits_of(x.placement, names),
        x.placement.tiles.count,
        x.cycles,
        x.bytes_per_tile,
        details,
    )

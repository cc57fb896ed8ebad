"""One spatial dimension of a convolution, and its reduction to simpler ones.

In one dimension out[o] = sum over k of x[o * stride + k * dilation - low] * w[k], where x is zero
outside its size. All convolution strategies work on this form; base dilation is removed first.
"""

from math import gcd
from typing import NamedTuple


class Axis(NamedTuple):
    """The geometry of one spatial dimension without base dilation."""

    size: int
    kernel: int
    out: int
    stride: int
    dilation: int
    low: int

    @property
    def first(self) -> int:
        """Position in x (possibly negative: padding) of the first element any output reads."""
        return -self.low

    @property
    def extent(self) -> int:
        """Number of positions from the first to the last element read, padding included."""
        return (self.out - 1) * self.stride + (self.kernel - 1) * self.dilation + 1


class Phase(NamedTuple):
    """The outputs first, first + step, … of a base-dilated axis, and the kernel taps they see."""

    first_out: int
    out_step: int
    first_tap: int
    tap_step: int
    axis: Axis


def output_size(
    size: int, kernel: int, stride: int, padding: tuple[int, int], base_dilation: int, dilation: int
) -> int:
    """Return the number of window positions along one dimension (StableHLO, `convolution`)."""
    dilated = (size - 1) * base_dilation + 1 if size else 0
    window = (kernel - 1) * dilation + 1 if kernel else 0
    padded = dilated + sum(padding)
    if padded <= 0 or window > padded:
        return 0
    return (padded - window) // stride + 1


def phases(axis: Axis, base_dilation: int) -> list[Phase]:
    """Split an axis whose x is dilated by zeros into axes on the undilated x.

    Output o and tap k meet an element of x only where o * stride + k * dilation - low is a multiple
    of base_dilation, so outputs that are congruent modulo base_dilation / gcd(base_dilation,
    stride) see the same taps, every base_dilation / gcd(base_dilation, dilation)-th.
    Outputs in no phase are zero.
    """
    if base_dilation == 1:
        return [Phase(0, 1, 0, 1, axis)]
    out_step = base_dilation // gcd(base_dilation, axis.stride)
    tap_step = base_dilation // gcd(base_dilation, axis.dilation)
    phases_of_axis = []
    common = gcd(base_dilation, axis.dilation)
    inverse = pow(axis.dilation // common, -1, tap_step) if tap_step > 1 else 0
    for first_out in range(min(out_step, axis.out)):
        offset = first_out * axis.stride - axis.low
        if offset % common:
            continue
        # The least tap with offset + tap * dilation divisible by base_dilation.
        first_tap = (-offset // common) * inverse % tap_step
        if first_tap < axis.kernel:
            position = offset + first_tap * axis.dilation
            part = Axis(
                axis.size,
                -(-(axis.kernel - first_tap) // tap_step),
                -(-(axis.out - first_out) // out_step),
                out_step * axis.stride // base_dilation,
                tap_step * axis.dilation // base_dilation,
                -(position // base_dilation),
            )
            phases_of_axis.append(Phase(first_out, out_step, first_tap, tap_step, part))
    return phases_of_axis


class Trimmed(NamedTuple):
    """An axis without the outputs and taps that meet only padding, and where they began."""

    first_out: int
    first_tap: int
    axis: Axis


def trimmed(axis: Axis) -> Trimmed | None:
    """Drop outputs and taps at both ends that never meet an element of x; None if none is left.

    Where one tap is left every output meets x, and where one output is left every tap does.
    """
    whole = Trimmed(0, 0, axis)
    while True:
        cut = _trimmed_once(whole.axis)
        if cut is None:
            return None
        if cut.axis == whole.axis:
            return whole
        # A dropped tap may leave outputs that met x through it alone, between dilated taps.
        whole = Trimmed(whole.first_out + cut.first_out, whole.first_tap + cut.first_tap, cut.axis)


def _trimmed_once(axis: Axis) -> Trimmed | None:
    size, kernel, out, stride, dilation, low = axis
    reach = (kernel - 1) * dilation
    # Output o meets x if o * stride - low <= size - 1 and o * stride + reach - low >= 0.
    first_out = max(0, -(-(low - reach) // stride))
    last_out = min(out - 1, (size - 1 + low) // stride)
    span = (last_out - first_out) * stride
    start = first_out * stride - low
    first_tap = max(0, -(-(-start - span) // dilation))
    last_tap = min(kernel - 1, (size - 1 - start) // dilation)
    if last_out < first_out or last_tap < first_tap:
        return None
    return Trimmed(
        first_out,
        first_tap,
        Axis(
            size,
            last_tap - first_tap + 1,
            last_out - first_out + 1,
            stride,
            dilation,
            -(start + first_tap * dilation),
        ),
    )


def clipped_outputs(axis: Axis, tap: int) -> tuple[int, int]:
    """Return the half-open range of outputs for which this tap meets an element of x."""
    offset = tap * axis.dilation - axis.low
    first = max(0, -(offset // axis.stride))
    last = min(axis.out - 1, (axis.size - 1 - offset) // axis.stride)
    return first, max(first, last + 1)

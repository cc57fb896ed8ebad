"""Geometry of sliding windows: slices, without index arrays."""

from collections.abc import Sequence
from math import gcd

from hloipu_runtime.frozen import dataclass


@dataclass(frozen=True, slots=True)
class WindowDimension:
    """One dimension of a window, named as in XLA's `WindowDimension`; in elements."""

    size: int
    stride: int = 1
    pad_low: int = 0
    pad_high: int = 0
    base_dilation: int = 1
    window_dilation: int = 1
    reversal: bool = False

    def output_size(self, input_size: int) -> int:
        """Return how many windows fit along a dimension of `input_size` elements."""
        dilated = (input_size - 1) * self.base_dilation + 1 if input_size else 0
        room = self.pad_low + dilated + self.pad_high - (self.size - 1) * self.window_dilation
        return (room - 1) // self.stride + 1 if room > 0 else 0


def output_shape(shape: Sequence[int], window: Sequence[WindowDimension]) -> tuple[int, ...]:
    """Return the shape that a window makes of an operand's shape."""
    return tuple(w.output_size(n) for n, w in zip(shape, window, strict=True))


def real_positions(input_size: int, window: WindowDimension) -> range:
    """Return the numbers of a window's elements that can be real in any window at all.

    Bounded by the sizes of operand and result, however large window and padding are.
    """
    reach = (window.output_size(input_size) - 1) * window.stride
    dilation = window.window_dilation
    first = max(0, -((reach - window.pad_low) // dilation))
    end = (window.pad_low + (input_size - 1) * window.base_dilation) // dilation + 1
    return range(first, min(window.size, max(end, 0)))


def element_slices(
    input_size: int, window: WindowDimension, position: int
) -> tuple[slice, slice] | None:
    """Find the windows whose element number `position` is a real element of the operand.

    Returns (slice of windows, slice of the operand), of one length and in step; None if every
    window has a hole or padding there.
    """
    windows = window.output_size(input_size)
    # Window o reads place o * stride + shift of the dilated operand.
    shift = position * window.window_dilation - window.pad_low
    stride, dilation = window.stride, window.base_dilation
    common = gcd(stride, dilation)
    if shift % common:
        return None
    step = dilation // common
    if windows == 0 or input_size == 0:
        return None
    # The first o >= 0 with o * stride + shift divisible by the dilation, then o >= -shift / stride.
    residue = (-(shift // common) * pow(stride // common, -1, step)) % step if step > 1 else 0
    lowest = max(0, -(shift // stride))
    first = lowest + (residue - lowest) % step
    last = min(windows - 1, ((input_size - 1) * dilation - shift) // stride)
    if first > last:
        return None
    count = (last - first) // step + 1
    start = (first * stride + shift) // dilation
    hop = stride * step // dilation
    return (
        slice(first, first + (count - 1) * step + 1, step),
        slice(start, start + (count - 1) * hop + 1, hop),
    )

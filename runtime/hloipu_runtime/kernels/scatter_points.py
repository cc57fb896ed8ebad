"""Scatters of single elements into small arrays, by numpy's indexed ufuncs alone."""

from collections.abc import Callable

from hloipu_runtime.kernels.core.blocks import Array
from hloipu_runtime.kernels.core.monoids import UFUNCS
from hloipu_runtime.kernels.scatter import FEW_WINDOWS, Form, How, scatter_as

_TYPES = frozenset({"f32", "f64", "s32", "u32", "s64", "u64"})
"""Those in which an indexed ufunc leaves values of the type."""


def scattering(form: Form, how: How) -> Callable[[Array, Array, Array], Array]:
    """Return `scatter_as` of one operand, which it leaves as it is."""
    keep = how._replace(in_place=False)

    def general(x: Array, indices: Array, update: Array) -> Array:
        return scatter_as(form, (x,), indices, (update,), keep)[0]

    monoid = how.combiner if isinstance(how.combiner, str) else ""
    points = form.is_ordered and form.window_elements == 1 and form.update_order is None
    if not points or 0 in form.shape or form.count <= FEW_WINDOWS or how.unique_indices:
        return general
    if monoid not in ("add", "multiply") or how.element_types[0] not in _TYPES:
        return general
    combine_at, checked, shape = UFUNCS[monoid].at, form.rows.checked, form.shape

    def points_at(x: Array, indices: Array, update: Array) -> Array:
        rows, valid = checked(indices)
        if valid is not None:
            return general(x, indices, update)
        made = x.flatten()
        combine_at(made, rows.reshape(-1), update.reshape(-1))
        return made.reshape(shape)

    return points_at

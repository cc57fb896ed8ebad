"""Kernels: each op's numerics on numpy arrays, defined once.

Conventions that every kernel keeps:

* Arrays come and go in *storage form*: `pred` as bool; integers of 8 bits and more in their own
  dtype, narrower ones in int8 or uint8; f64, c64 and c128 in theirs; f32 and every narrower float
  in float32, holding only values of the narrow type's grid.
* Where storage alone does not tell the element type, the kernel takes it as `element_type: str`.
* Kernels that compute a narrow float round their result to its grid (`rounding.round_to`).
* No kernel writes to its inputs. Results may be views of inputs, and may be read-only.
* Regions (reducers, comparators, scatter combiners) come as callables on whole arrays, or as the
  name of a monoid: add, multiply, minimum, maximum, and, or, xor.
* Sizes, ranks and index ranges were checked by whoever calls: a kernel does not check them again.
"""

"""Random typed HLO programs, evaluated by us and by XLA:CPU, and compared.

Values are kept tame (`facts`), so that a difference means a bug of one side. Where the bug is XLA's
(jaxlib 0.10.2), shown by closed forms, the generator stays away:

* `for (i = 0; i < 1; i += 2)` is taken for a loop without trips (`loops`);
* of a dynamic-slice of a slice, and of a gather or scatter at one index, which become such slices,
  the starts are added and the sum is clamped, not each of them (`movement`, `scattering`);
* unsigned constant indices with their highest bit set count as negative (`movement`, `scattering`);
* a convolution whose window covers its input forgets the window's reversal, some with negative
  padding and strides are wrong, and folded ones of integers do not wrap (`contractions`);
* `|x*x|` is taken for `x*x` where the product of integers wraps (`floats`);
* folded `count-leading-zeros` of a negative s8, s16 or s32 counts as of 64 bits (`integers`);
* a reduction's initial value that is no identity of its region is dropped or applied again, which
  HLO allows (`regions`); ties of select-and-scatter depend on the order of visiting (`windows`).

XLA ends its process on dead reductions whose regions call, on constants divided by a constant zero,
on maps of complex numbers behind a reverse, and refuses a bitcast-convert to narrower elements of
one to narrower elements: such programs count as refused.
"""

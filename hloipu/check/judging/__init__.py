"""Judges results of whole modules by what rounding may do to them (docs/numerics.md)."""

"""Algebraic rewrites with bit-identical results."""

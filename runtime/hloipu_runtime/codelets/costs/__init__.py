"""Cycles of codelets on one tile, from published formulas."""

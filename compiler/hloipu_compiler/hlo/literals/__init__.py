"""Literals: their text, and the arrays that it stands for."""

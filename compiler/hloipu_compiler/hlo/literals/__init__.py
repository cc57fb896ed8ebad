"""Literals: from text to arrays and back."""

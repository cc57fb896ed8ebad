"""Codelets whose indices are data: dynamic slices, gathers and scatters."""

"""Graphcore's calls, values and statements, read and written."""

"""Lowering of a flat graph to a program: vertices, exchanges, streams and control."""

"""Reads modules in Graphcore's own encoding and calls of its libraries."""

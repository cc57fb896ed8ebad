"""Means of gradients over replicas, written into a module that is placed: all-reduces of its own.

One all-reduce for all gradients of an element type on an IPU, as where steps are cut
(`codegen/replica_means.py`); the update reads the means.
"""

from dataclasses import replace

from hloipu_compiler.hlo.literal_text import literal_of_text  # placeholder

"""The program: variables on tiles, and the steps that compute, exchange and loop over them.

`mapping` places variables, `steps` are the tree, `program` holds all of it, `verify` proves it.
Words are Poplar's (docs.graphcore.ai, Poplar and PopLibs User Guide): tile, vertex, codelet,
compute set, exchange, stream.
"""

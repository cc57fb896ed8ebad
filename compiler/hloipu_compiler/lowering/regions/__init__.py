"""Lowering of ops that run computations: fusions, row regions, loops and branches."""

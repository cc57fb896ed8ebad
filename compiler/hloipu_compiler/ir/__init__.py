"""The graph: shapes, attributes, the op table, instructions, computations, modules."""

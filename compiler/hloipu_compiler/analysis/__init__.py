"""Facts about a graph that passes and reports ask for: pure functions, linear in the graph."""

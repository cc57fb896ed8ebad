"""Reader and writer of Graphcore's calls, values and statements."""

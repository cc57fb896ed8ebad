"""Custom ops of Graphcore's libraries as ops of HLO."""

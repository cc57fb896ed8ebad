"""Custom ops of Graphcore's libraries as HLO ops."""

"""Formulas of custom calls as HLO ops: the registry and the writer."""

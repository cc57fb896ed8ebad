"""Costs of a step's ops on one IPU, for cutting and searching."""

"""Importer of steps in Graphcore's encoding: calls of pipelines, stages and updates, and loops."""

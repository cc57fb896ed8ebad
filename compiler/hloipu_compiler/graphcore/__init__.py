"""Importer of modules in Graphcore's encoding and of calls of its libraries."""

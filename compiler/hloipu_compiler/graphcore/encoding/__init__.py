"""Steps as Graphcore's plugin prints them: calls of pipelines, stages and updates, and loops."""

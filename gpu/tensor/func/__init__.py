"""Transforms of functions, from graph to graph: what `gpu.func` has."""

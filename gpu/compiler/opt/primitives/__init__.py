"""The transformations of loops, each with its test of what is legal."""

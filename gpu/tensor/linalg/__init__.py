"""Linear algebra: decompositions of matrices, and what rests on them."""

"""PTX instructions one by one: what our simulator computes, and whether a GPU computes the same."""

"""PTX on the lane engine: text becomes records of operations on rows of 32 threads."""

"""Linear IR printed as the text a toolchain takes."""

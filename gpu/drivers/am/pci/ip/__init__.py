"""The blocks of a chip, each with what brings it up."""

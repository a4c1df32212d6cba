"""64-bit integers of 32-bit ones, for targets that have no others."""

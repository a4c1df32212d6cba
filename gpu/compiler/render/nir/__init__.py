"""Linear IR as NIR, for the GPUs that Mesa compiles for."""

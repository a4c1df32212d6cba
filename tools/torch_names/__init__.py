"""The names of torch's that this package has: calls of each, compared with torch's and timed."""

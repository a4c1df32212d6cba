"""What loops do, seen before any is changed: nests, dependence, widths of accesses, lanes."""

"""The GPU itself: packets, registers, caches, grids. It knows no kernel driver."""

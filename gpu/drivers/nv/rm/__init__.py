"""RM, NVIDIA's resource manager: its objects, escapes and classes, and a client of it."""

"""What goes wrong on purpose, each in a process of its own, and that the GPU works behind it."""

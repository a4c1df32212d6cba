"""Where each graph node is computed: fusion as placement, and the kernels it gives."""

"""Values on several devices, and the nodes of single devices that they become."""

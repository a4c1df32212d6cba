"""NVIDIA straight over PCI: the card booted by its own firmware, with no kernel driver."""

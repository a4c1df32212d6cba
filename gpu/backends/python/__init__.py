"""The reference device: programs are interpreted in numpy, nothing is compiled."""

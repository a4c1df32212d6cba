"""NVIDIA's cards on PCI, without their kernel driver: registers, FSP, GSP and its firmware."""

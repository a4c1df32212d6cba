"""Drivers: from device files, PCI functions or USB bridges to command queues, one folder a vendor.

A driver is handed a `gpu.transport.world.World` and touches nothing else; the layer above,
`gpu.hcq`, knows no vendor.
"""

"""PCI functions behind ASM2464PD, a bridge from USB to PCI Express, in enclosures for one card."""

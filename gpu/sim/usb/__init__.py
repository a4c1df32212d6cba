"""A model of the ASM2464PD, a bridge from USB to PCI Express, and of what is behind it."""

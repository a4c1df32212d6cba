"""PCI of a simulated machine: config space, BARs, and how cards reach memory behind an IOMMU."""

"""PCI functions: `function` says what a driver may ask of one, the others how it is reached."""

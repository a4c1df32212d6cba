"""Commands as methods, pushbuffers, launch descriptors and constant banks."""

"""AMD RDNA: decoder, semantics, and the state that a dispatch starts with."""

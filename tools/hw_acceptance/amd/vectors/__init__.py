"""Each instruction that the lane engine knows, on the card and on the engine."""

"""Loop transformations of kernel IR, each with its legality, and the policy that picks them."""

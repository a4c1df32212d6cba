"""AMD's cards without their kernel driver: from the table a chip has of itself to its queues."""

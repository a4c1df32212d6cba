"""AMD's chips as PCI sees them: registers, firmware's mailboxes, memory, queues."""

"""What devices on command queues share, whatever driver is below: memory, programs, graphs."""

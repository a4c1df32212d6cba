"""The resource manager (RM): clients, objects and commands, by handles and bytes."""

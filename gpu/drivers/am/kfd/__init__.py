"""KFD, the compute driver of Linux: its calls, memory, queues, events, and the port over it."""

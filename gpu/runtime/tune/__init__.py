"""The search of schedules: candidates are measured, and the best are kept in a file."""

"""The kernel driver: calls, objects, contexts, and the dispatcher that feeds the rings."""

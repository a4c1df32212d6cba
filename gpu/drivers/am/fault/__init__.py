"""Faults: dispatches under way, the report."""

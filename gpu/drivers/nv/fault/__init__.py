"""Faults: errors of multiprocessors, launches under way, the report."""

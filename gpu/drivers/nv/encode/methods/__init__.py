"""The methods of host, compute and copy engines, by their classes."""

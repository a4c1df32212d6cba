"""Packets and descriptors as text."""

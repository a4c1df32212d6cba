"""Commands as PM4, SDMA and AQL packets, and what a dispatch needs."""

"""The `gpu` command."""

"""One package a device type; found by name in runtime, imported on use."""

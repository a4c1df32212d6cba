"""From kernel IR to linear IR, and from the full op table to what a device offers."""

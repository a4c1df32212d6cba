"""Numbers beside the vendor's, taken in the same run on the same machine."""

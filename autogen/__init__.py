"""ctypes modules generated from C headers; see tools/autogen."""

"""What needs the vendor's own stack: a health check, and a recording of what it does.

All of it runs in children, so that nothing of libcuda is ever mapped beside our drivers.
"""

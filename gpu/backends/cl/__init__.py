"""The CL device: OpenCL through the loader of this system."""

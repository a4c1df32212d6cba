"""Neural networks: layers, optimisers and state, by their public names.

>>> import gpu.nn.state
>>> callable(gpu.nn.state.safe_load)
True
"""

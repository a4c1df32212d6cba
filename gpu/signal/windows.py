"""Windows by the names of `torch.signal.windows`, with its arguments.

>>> from gpu.signal import windows
>>> windows.hann(5).tolist()
[0.0, 0.5, 1.0, 0.5, 0.0]
"""

from gpu.tensor.signalwindows import (
    bartlett,
    blackman,
    cosine,
    exponential,
    gaussian,
    general_cosine,
    general_hamming,
    hamming,
    hann,
    kaiser,
    nuttall,
)

__all__ = [
    "bartlett",
    "blackman",
    "cosine",
    "exponential",
    "gaussian",
    "general_cosine",
    "general_hamming",
    "hamming",
    "hann",
    "kaiser",
    "nuttall",
]

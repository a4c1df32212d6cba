"""Model files: safetensors, torch checkpoints, and plain archives of bytes.

All of them are read by mapping the file: on the CPU a tensor is a view of the file where that is
possible, and costs nothing until it is used. Files are taken for hostile: whatever one says is
checked before it is believed, nothing in it is executed, and what is wrong is a `FormatError`.
"""

"""What every other package may use, with no hardware knowledge.

Errors, configuration, logging, dtypes, files, executable memory and the object loader.
"""

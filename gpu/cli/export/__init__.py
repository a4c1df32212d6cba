"""`gpu export`: a jitted function as a folder that runs without this package."""

"""`gpu bench`: how fast this package is here, and beside other libraries on the same machine."""

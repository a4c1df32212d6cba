"""Which transformations a kernel gets: lists of them, for the kind of machine it is for."""

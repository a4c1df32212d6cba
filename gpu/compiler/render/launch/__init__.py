"""How a program is launched: which loops its threads are, where locals live, how it is called."""

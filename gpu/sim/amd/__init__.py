"""AMD: the kernel's compute driver (KFD), its render node, and the engines behind them."""

"""Channels: choosing engines, opening, renewing them."""

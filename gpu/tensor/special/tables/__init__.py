"""Polynomials of special functions, one module a family."""

"""Tokens in mapped memory: list columns, kernels that copy them into rows, and documents joined into trees."""

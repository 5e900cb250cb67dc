"""Providers of machines: each starts, stops and lists them with a tool that people already run."""

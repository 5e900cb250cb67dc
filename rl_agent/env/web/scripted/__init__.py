"""Scripted agents for the environment `web`, which prove its rewards and can teach by demonstration."""

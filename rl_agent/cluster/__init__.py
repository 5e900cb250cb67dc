"""Runs, ranks and process groups as they are recorded under the log path."""

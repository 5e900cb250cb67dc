"""Verdicts that no environment gives: the model judge."""

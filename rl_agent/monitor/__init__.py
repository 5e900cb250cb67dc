"""What a person sees: progress, metrics, curves."""

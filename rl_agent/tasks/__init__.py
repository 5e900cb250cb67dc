"""Task files: load and check them, sample from them."""

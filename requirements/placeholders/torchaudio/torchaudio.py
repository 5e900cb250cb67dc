"""Stands in for torchaudio on CPU hosts; see ../../cpu-overrides.txt. Any use fails loudly."""


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(f"torchaudio.{name}: audio is not available in the CPU environment")

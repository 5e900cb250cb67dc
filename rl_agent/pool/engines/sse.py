"""Server-sent events out of a stream of bytes, however it is cut up. Pure."""

MAX_EVENT_BYTES = 16 * 1024 * 1024


class EventReader:
    """Splits bytes into events: `feed` returns the payloads of those that are complete."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, received: bytes) -> list[bytes]:
        """Raises ValueError if an event grows beyond all reason."""
        first, *lines = received.split(b"\n")
        self._rest.append(first)  # joined once it is whole, however small its parts
        self._rest_bytes += len(first)
        if lines:
            whole = b"".join(self._rest)
            *lines, rest = whole, *lines
            self._rest, self._rest_bytes = [rest], len(rest)
        if self._rest_bytes > MAX_EVENT_BYTES:
            raise ValueError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]

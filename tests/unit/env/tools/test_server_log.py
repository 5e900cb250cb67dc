"""A server of tools can fill neither the log nor the memory with what it writes to standard error."""

from hypothesis import given
from hypothesis import strategies as st

from rl_agent.env.tools.server_log import AT_ONCE_BYTES, BYTES_A_SECOND, LONGEST_LINE, ServerLog


class Reader:
    """A log, its clock and the lines in it."""

    def __init__(self):
        self.now = 0.0
        self.lines = []
        self.log = ServerLog("the server", self.lines.append, lambda: self.now)

    @property
    def size(self):
        return sum(map(len, self.lines))


def test_lines_are_passed_on_whole_however_they_arrive():
    reader = Reader()
    for piece in (b"star", b"ted\nlisten", b"ing\n\n", b"\x1b[31mred\xff\n"):
        reader.log.take(piece)
    assert reader.lines == ["started\n", "listening\n", "\\x1b[31mred\ufffd\n"]


def test_a_flood_is_cut_and_reported_once_and_later_lines_come_again():
    reader = Reader()
    for _ in range(1000):
        reader.log.take(b"x" * 99 + b"\n" + b"y" * 10_000)
    assert reader.size < AT_ONCE_BYTES + 2 * LONGEST_LINE
    reader.now = 60.0
    reader.log.take(b"\nlater\n")
    assert reader.lines[-1] == "later\n"
    for _ in range(1000):
        reader.log.take(b"x" * 99 + b"\n")
    assert sum("lines are left out" in line for line in reader.lines) == 1
    assert reader.size < AT_ONCE_BYTES + 60 * BYTES_A_SECOND + 2 * LONGEST_LINE


@given(st.lists(st.binary(max_size=3000), max_size=30))
def test_nothing_of_a_line_is_kept_beyond_what_may_be_written(pieces):
    reader = Reader()
    for piece in pieces:
        reader.log.take(piece)
        assert len(reader.log._begun) <= LONGEST_LINE
    assert all(len(line) < 12 * LONGEST_LINE for line in reader.lines)

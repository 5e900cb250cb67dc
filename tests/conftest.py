"""Rules that hold for every test."""

import signal

from hypothesis import settings

# A shell starts what it puts in the background with Ctrl+C ignored, and children inherit that. The tests of
# Ctrl+C must not depend on how pytest itself was started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Random examples a property: few on every change, many with `scripts/test.sh extended`.
settings.register_profile("quick", max_examples=30, deadline=None)
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile("quick")

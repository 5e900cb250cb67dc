"""A change wakes threads and tasks, and none is missed."""

import threading

from rl_agent.cluster.member.notifier import Notifier


def test_a_change_between_looking_and_waiting_is_not_missed():
    notifier = Notifier()
    seen = notifier.count
    notifier.notify()
    notifier.wait(seen, 3600.0)


async def test_a_change_wakes_a_task_of_an_event_loop_from_another_thread():
    notifier = Notifier()
    changing = threading.Timer(0.01, notifier.notify)
    changing.start()
    await notifier.wait_async(notifier.count, 3600.0)
    changing.join()
    await notifier.wait_async(notifier.count, 0.001)
    assert not notifier._listeners

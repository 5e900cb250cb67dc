"""Addresses of episodes, and what is answered there."""

from urllib.parse import urlencode


def address(task="task-0", attempt=0, view="episode", **more):
    key = {"split": "train", "iteration": 1, "task": task, "group": 0, "attempt": attempt, **more}
    return f"/runs/log/{view}?{urlencode(key)}"


async def text_of(client, path):
    answer = await client.get(path)
    assert answer.status == 200, await answer.text()
    return await answer.text()

"""A pool of one engine that answers questions beside responses, as a test says."""

from types import SimpleNamespace

from rl_agent.pool.engines.answers import StreamError


class AskedLink:
    """Answers a POST with the next of `answers`: (status, payload), or an error to raise."""

    def __init__(self, *answers):
        self.info = SimpleNamespace(served_name="served")
        self.answers = list(answers)
        self.questions = []

    async def post(self, path, body):
        self.questions.append((path, body))
        answer = self.answers.pop(0)
        if isinstance(answer, StreamError):
            raise answer
        return answer


class AskedPool:
    def __init__(self, link):
        self.link = link
        self.num_unread = 0

    def ready_link(self, besides=()):
        return None if self.link in besides else self.link

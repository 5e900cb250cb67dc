"""Pages that do what no page should; a task names one as `page`."""

from rl_agent.env.web.site import SiteRequest, SiteResponse
from rl_agent.types import Task

BUTTON = (
    "<style>button { position: fixed; inset: 0; width: 100%; height: 100%; }</style><button id=b>go</button>"
)
MORE = """
const kept = [];
const more = () => {
  for (let n = 0; n < 2e4; n++) {
    const one = document.createElement('p');
    one.textContent = 'x'.repeat(4000) + n;
    document.body.append(one);
    kept.push(new Uint8Array(8192).fill(1));
  }
  setTimeout(more, 0);
};
more();
"""


def on_click(script: str) -> str:
    """A page that runs a script where one clicks."""
    return f"{BUTTON}<script>document.getElementById('b').onclick = () => {{ {script} }}</script>"


PAGES = {
    "calm": BUTTON,
    "closing": "<script>close()</script>",
    "alert": on_click("alert('hello')"),
    "alerts": on_click("while (true) alert('again')"),
    "confirm": on_click("location = '/sure-' + confirm('sure?')"),
    "loop": on_click("while (true) {}"),
    "close": on_click("open('/closing')"),
    "close-itself": on_click("open('', '_self').close()"),
    "closes-at-once": BUTTON + "<script>open('', '_self').close()</script>",
    "opens-one-that-closes": on_click("open('/close-itself')"),
    "tab": on_click("open('/other')"),
    "tabs": on_click("for (let n = 0; n < 50; n++) open('/other')"),
    "outside": on_click("location = 'http://evil.example/'"),
    "redirect": on_click("location = '/to-evil'"),
    "file": on_click("location = 'file://SECRET'"),
    "to-file": on_click("location = '/redirect-to-file'"),
    "frame-file": BUTTON + "<iframe src='file://SECRET'></iframe>",
    "engine": on_click("location = 'http://127.0.0.1:PORT/'"),
    "fetch": on_click("fetch('http://127.0.0.1:PORT/'); new WebSocket('ws://127.0.0.1:PORT/')"),
    "download": on_click("location = '/binary'"),
    "upload": BUTTON + "<input type=file id=f><script>b.onclick = () => f.click()</script>",
    "crash": on_click("location = 'chrome://crash'"),
    "large": on_click(MORE),
    "unload": on_click("onbeforeunload = () => 'stay'; location = '/other'"),
}


class Site:
    """One of the pages, and where it leads."""

    def __init__(self, task: Task, seed: int) -> None:
        self._port = str(task.extra.get("port", 0))
        self._secret = task.extra.get("secret", "/etc/passwd")
        self.goal = task.extra.get("goal")
        self._loops = task.extra.get("loops", 0)
        self.start = f"/{task.extra['page']}"

    def respond(self, request: SiteRequest) -> SiteResponse:
        name = request.path.strip("/")
        if name == "to-evil":
            return SiteResponse(location="http://evil.example/")
        if name == "redirect-to-file":
            return SiteResponse(location=f"file://{self._secret}")
        if name == "binary":
            return SiteResponse("secret", "application/octet-stream")
        if self._loops:
            self._loops -= 1
            return SiteResponse("<script>onload = () => setTimeout(() => { while (true) {} })</script>")
        page = PAGES.get(name, f"<p>This is {name}.</p>").replace("PORT", self._port)
        page = page.replace("SECRET", self._secret)
        return SiteResponse(f"<!doctype html><title>{name}</title>{page}")

    def reward(self, answer: str | None) -> float | None:
        return None if answer is None else float(answer == "yes")

"""Headless Chromium with WebGPU in software, which runs pieces of JavaScript for tests.

The browser opens one page of the test's own server, and that page fetches work from the server and
posts what became of it. So there is nothing to install but the browser, and it is started once.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_ANSWER_TIMEOUT: Final = 90.0  # seconds; includes the start
_POLL: Final = 5.0  # seconds that a request for work is kept waiting
_FLAGS: Final = (
    *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--no-first-run"),
    *("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan"),
    *("--disable-quic", "--disable-background-networking", "--disable-component-update"),
    "--disable-sync",
)
_WORKER: Final = """<!doctype html><title>Tests</title><script type="module">
const Work = (async () => {}).constructor;
for (;;) {
  const work = await fetch("/work");
  if (work.status !== 200) continue;
  let answer;
  try {
    answer = { value: await new Work(await work.text())() ?? null };
  } catch (error) {
    answer = { error: `${error.name}: ${error.message}` };
  }
  await fetch("/answer", { method: "POST", body: JSON.stringify(answer) });
}
</script>"""


class ScriptError(Exception):
    """What a script threw, as `Name: message`."""


def find_chromium() -> str | None:
    """The browser's path."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """A browser that sees the files below a folder as those of a web site."""

    def __init__(self, root: Path, profile: Path):
        """`profile` is an empty folder for the browser's own files."""
        executable = find_chromium()
        assert executable is not None
        self._work: queue.Queue[str] = queue.Queue()
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        handler = partial(_Handler, self._work, self._answers, directory=str(root))
        self._server = _Server(("127.0.0.1", 0), handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._log = profile / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(executable, *_FLAGS, f"--user-data-dir={profile / 'data'}"),
                    f"http://127.0.0.1:{self._server.server_port}/worker",
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,  # with all its children, to be ended together
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._server.shutdown()
        self._server.server_close()

    def run(self, script: str) -> Any:
        """What the body of an asynchronous function returns, as JSON has it.

        Raises ScriptError for what it throws, and AssertionError where no answer comes.
        """
        self._work.put(script)
        try:
            answer = self._answers.get(timeout=_ANSWER_TIMEOUT)
        except queue.Empty:
            log = self._log.read_text(errors="replace")[-2000:]
            raise AssertionError(f"no answer from the browser; it said: {log}") from None
        if "error" in answer:
            raise ScriptError(answer["error"])
        return answer["value"]


class _Server(ThreadingHTTPServer):
    """Takes no notice of a browser that goes away while it waits."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tells of other errors."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(SimpleHTTPRequestHandler):
    """Files, the page that works, and its two requests."""

    def __init__(
        self,
        work: queue.Queue[str],
        answers: queue.Queue[dict[str, Any]],
        *args: Any,
        directory: str,
    ):
        self._work, self._answers = work, answers
        super().__init__(*args, directory=directory)

    def do_GET(self) -> None:
        """Gives a file, or something to do once there is something."""
        if self.path == "/worker":
            self._send(200, _WORKER, "text/html")
        elif self.path == "/work":
            try:
                self._send(200, self._work.get(timeout=_POLL), "text/plain")
            except queue.Empty:
                self._send(204, "", "text/plain")
        else:
            super().do_GET()

    def do_POST(self) -> None:
        """Takes an answer."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._send(200, "", "text/plain")
        self._answers.put(json.loads(body))

    def _send(self, status: int, text: str, kind: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: tests print what matters."""

"""Measure how fast a page opens and folds in headless Chromium: ``python benchmarks/page.py FILE``.

Opening: from the start of the navigation to the first view on the screen. Folding: from the click
on "open all", then on "fold all", to the next frame; the layout is computed. Other views: from the
click on their name. The least and the median of five runs are printed, in milliseconds.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

PROBE = """
<script>
(async () => {
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  const taken = { opens: performance.now() };
  const time = async (name, act) => {
    const begin = performance.now();
    act();
    await frame();
    document.body.getBoundingClientRect();
    taken[name] = performance.now() - begin;
  };
  const buttons = [...document.querySelectorAll(".controls button")];
  await frame();
  taken.opens = performance.now();
  await time("opens all boxes", () => buttons.find((b) => b.textContent === "open all").click());
  await time("folds all boxes", () => buttons.find((b) => b.textContent === "fold all").click());
  for (const link of [...document.querySelectorAll("nav a")].slice(1)) {
    await time(`view ${link.textContent}`, () => { link.click(); });
    await frame();
  }
  await fetch("/taken", { method: "POST", body: JSON.stringify(taken) });
})();
</script>
"""


class _Server(HTTPServer):
    """Serves a page, and waits for what it measured."""

    page: bytes
    taken: dict[str, float] | None = None


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        """Send the page."""
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.server.page if self.path == "/" else b"")

    def do_POST(self) -> None:
        """Take what the page measured."""
        length = int(self.headers["Content-Length"])
        self.server.taken = json.loads(self.rfile.read(length))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


def measured(page: Path) -> dict[str, float]:
    """Return the milliseconds of each action in one run of the browser."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("no Chromium is installed")
    server = _Server(("127.0.0.1", 0), _Handler)
    server.page = page.read_text().replace("</body>", f"{PROBE}</body>").encode()
    server.timeout = 30
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, server:
        command = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu"]
        command += ["--disable-dev-shm-usage", f"--user-data-dir={folder}"]
        command += ["--window-size=1400,1000", f"http://127.0.0.1:{server.server_port}/"]
        command += ["--remote-debugging-port=0"]  # keeps it running after the page is loaded
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as browser:
            while server.taken is None:
                server.handle_request()
            browser.terminate()
    return server.taken


def main() -> None:
    """Print a table of the actions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    runs = [measured(arguments.page) for _ in range(arguments.runs)]
    print(f"{arguments.page.stat().st_size / 1e6:.2f} MB\n")
    print("| action | least ms | median ms |\n|---|---|---|")
    for name in runs[0]:
        times = [run[name] for run in runs]
        print(f"| {name} | {min(times):.0f} | {statistics.median(times):.0f} |")


if __name__ == "__main__":
    main()

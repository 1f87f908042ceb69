"""A headless Chromium, driven over WebDriver (https://www.w3.org/TR/webdriver2/) by its package's own chromedriver."""

import base64
import contextlib
import json
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request

from mounting import Failure, Skip, wait_until

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--hide-scrollbars", "--force-color-profile=srgb")


class Browser:
    def __init__(self, port, dark, size):
        self.base = f"http://127.0.0.1:{port}"
        flags = [*FLAGS, f"--window-size={size[0]},{size[1]}", *(["--force-dark-mode", "--blink-settings=preferredColorScheme=0"]
                                                                 if dark else [])]
        wanted = {"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:loggingPrefs": {"browser": "ALL"},
                                                   "goog:chromeOptions": {"binary": shutil.which("chromium"), "args": flags}}}}
        self.session = self._ask("POST", "/session", wanted)["sessionId"]

    def _ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise Failure(f"webdriver {path}: {json.load(error)['value']['message']}") from error

    def _here(self, method, path, body=None):
        return self._ask(method, f"/session/{self.session}{path}", body)

    def open(self, url):
        self._here("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        """Returns the result of the JavaScript; no value is None."""
        return self._here("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector):
        """Returns the texts of all elements that match."""
        return self.run("return [...document.querySelectorAll(arguments[0])].map(node => node.textContent)", selector)

    def wait_for(self, what, condition, seconds=20):
        wait_until(what, condition, seconds, 0.1)

    def errors(self):
        """Returns the console's errors since the last call: failed scripts, refused resources."""
        return [entry["message"] for entry in self._here("POST", "/se/log", {"type": "browser"}) if entry["level"] == "SEVERE"]

    def screenshot(self, path):
        """Saves an image of the whole page."""
        height = self.run("return document.documentElement.scrollHeight")
        width = self.run("return window.innerWidth")
        self._here("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {
            "width": width, "height": max(height, 400), "deviceScaleFactor": 1, "mobile": False}})
        time.sleep(0.6)  # wait for the end of animations
        pathlib.Path(path).write_bytes(base64.b64decode(self._here("GET", "/screenshot")))

    def close(self):
        self._here("DELETE", "")


@contextlib.contextmanager
def chromium(dark=False, size=(1240, 900)):
    """Starts a browser, and ends it at the end of the scope."""
    if not shutil.which("chromedriver") or not shutil.which("chromium"):
        raise Skip("chromium: scripts/setup --tests installs it")
    folder = tempfile.mkdtemp(prefix="ckptfs-browser-")
    driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder}, start_new_session=True)
    try:
        port = None
        for line in driver.stdout:
            found = re.search(r"started successfully on port (\d+)", line)
            if found:
                port = int(found.group(1))
                break
        if port is None:
            raise Failure("chromedriver did not start")
        browser = Browser(port, dark, size)
        try:
            yield browser
        finally:
            browser.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            driver.send_signal(signal.SIGTERM)
        driver.wait(20)
        shutil.rmtree(folder, ignore_errors=True)

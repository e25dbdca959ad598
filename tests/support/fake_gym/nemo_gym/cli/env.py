"""A fake of the helper that starts everything.

Keys of the config that only it knows:
    start: "fail" raises, "hang" never gets ready; else the servers are started at once
    ready_file: the head is ready only when this file is there
    stop: "hang" waits at its end for ever, as for a rollout whose vLLM is gone
"""

import json
import signal
import subprocess
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import ray

KINDS = ("resources_servers", "responses_api_agents", "responses_api_models", "environment_servers")


#: Says more at its end than fits into a message, as a web server does.
_SERVER = """\
trap 'for i in {1..30}; do echo "Shutting down $i"; done; exit 0' TERM
while :; do sleep 0.1; done
"""


class RunHelper:
    """Starts a head and servers that sleep."""

    def start(self, global_config_dict_parser_config: Any) -> None:
        config = global_config_dict_parser_config.initial_global_config_dict
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ready = False
        self._hangs = config.get("stop") == "hang"
        # As the real one, it looks the name up when it starts.
        ray.init()
        self._head = self._listen(config)
        try:
            self._start(config)
        except BaseException:
            self.shutdown()
            raise

    def _start(self, config: Any) -> None:
        if config.get("start") == "fail":
            raise RuntimeError("Process `vowels` finished unexpectedly!")
        for name, value in config.items():
            if isinstance(value, dict) and any(kind in value for kind in KINDS):
                # As NeMo Gym does: a shell, in our group, that nobody watches but us.
                self._processes[name] = subprocess.Popen(["bash", "-c", _SERVER])
        print("fake Gym: servers started", flush=True)
        while config.get("start") == "hang" or not Path(config.get("ready_file", "/")).exists():
            time.sleep(0.05)
        self._ready = True

    def _listen(self, config: Any) -> ThreadingHTTPServer:
        helper = self

        class Head(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                listed = [
                    {"process_name": name, "name": name, "pid": process.pid}
                    for name, process in helper._processes.items()
                ]
                ok = self.path != "/readyz" or helper._ready
                body = json.dumps(listed if self.path == "/server_instances" else {}).encode()
                self.send_response(200 if ok else 503)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        head = ThreadingHTTPServer(
            (config["head_server"]["host"], config["head_server"]["port"]), Head
        )
        Thread(target=head.serve_forever, args=(0.05,), daemon=True).start()
        return head

    def poll(self) -> None:
        pass

    def shutdown(self) -> None:
        while self._hangs:
            time.sleep(0.05)
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
            process.wait()
        self._head.shutdown()
        print("fake Gym: ended in good order", flush=True)

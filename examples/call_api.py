"""Call an API for 50 tenants, with 100 requests a second, while one tenant has a large backlog."""

from __future__ import annotations

import sys
import threading
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from spark_mq import Message, Queue, ReceivedMessage

RATE = 100
AT_ONCE = 4  # requests of one tenant that the API accepts


class Api(ThreadingHTTPServer):
    """An API that counts its requests, and refuses too many of one tenant at once."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.open: Counter[str] = Counter()
        self.served: list[tuple[float, str]] = []
        self.refused = 0


class Handler(BaseHTTPRequestHandler):
    server: Api

    def do_GET(self) -> None:
        tenant = self.path.strip("/")
        with self.server.lock:
            self.server.open[tenant] += 1
            full = self.server.open[tenant] > AT_ONCE
            self.server.refused += full
            self.server.served.append((time.monotonic(), tenant))
        time.sleep(0.02)
        with self.server.lock:
            self.server.open[tenant] -= 1
        self.send_response(429 if full else 204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def main(folder: str) -> None:
    # With several times as many lanes as tenants, few of them share a lane.
    queue = Queue.create(f"{folder}/calls", lanes=512, exist_ok=True)
    group = queue.group("api")
    group.configure(
        rate_limit=f"{RATE}/s", rate_burst="200ms", order="fair", max_in_flight_per_key=AT_ONCE
    )
    queue.publish([Message(str(n), key="tenant-0") for n in range(200)])
    queue.publish([Message(str(n), key=f"tenant-{t}") for t in range(1, 50) for n in range(4)])
    api = Api()
    url = f"http://127.0.0.1:{api.server_address[1]}"
    threading.Thread(target=api.serve_forever, daemon=True).start()

    def call(message: ReceivedMessage) -> None:
        # An answer of 400 or more raises an error, so the message is retried later.
        urllib.request.urlopen(f"{url}/{message.key}", timeout=10).close()

    def work(_: int) -> int:
        return group.work(call, mode="message", threads=8, until="settled").acked

    begin = time.monotonic()
    with ThreadPoolExecutor(2) as workers:
        acked = sum(workers.map(work, range(2)))
    api.shutdown()
    api.server_close()
    times = [at - begin for at, _ in api.served]
    others = max(at - begin for at, tenant in api.served if tenant != "tenant-0")
    most = max(sum(1 for one in times if at <= one < at + 1) for at in times)
    print(f"acked {acked}, refused {api.refused}, in {max(times):.1f} s")
    print(f"the most requests in a second: {most}")
    print(f"the last request of the small tenants: after {others:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1])

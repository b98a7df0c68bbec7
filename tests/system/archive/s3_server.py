"""An S3 server (moto) that fails on purpose.

Prints its port. A request to /_faults/KIND/EVERY makes one of EVERY requests fail from then on, by chance, 0 none; it answers how
many have failed so far. KIND is

refuse   500, and nothing was done
lost     done, and the connection is cut before the answer
cut      the connection is cut in the middle of the answer
slow     the answer takes a while
wrong    a byte of a file that is read is another one
"""

import random
import socket
import sys
import threading
import time
import urllib.request

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


class Faulty:
    def __init__(self, app):
        self.app = app
        # Uses a fixed seed, so that each run has the same failures.
        self.kind, self.every, self.chance, self.failed = "", 0, random.Random(7), 0
        self.lock = threading.Lock()

    def __call__(self, environ, start_response):
        path = environ["PATH_INFO"]
        if path.startswith("/_faults/"):
            return self.control(path, start_response)
        # Collects the complete response, because a fault may replace or cut it.
        answer = {}

        def answered(status, headers, _=None):
            answer.update(status=status, headers=headers)

        kind = self.fault(environ)
        if kind == "refuse":
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response("500 Internal Server Error", [("Content-Length", "0")])
            return []
        body = b"".join(self.app(environ, answered))
        if kind == "slow":
            time.sleep(0.2)
        elif kind == "wrong":
            body = body[: len(body) // 2] + bytes(byte ^ 1 for byte in body[len(body) // 2 :][:1]) + body[len(body) // 2 + 1 :]
        elif kind in ("lost", "cut"):
            write = start_response(answer["status"], answer["headers"])
            if kind == "cut":
                write(body[: len(body) // 2])
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return []
        start_response(answer["status"], answer["headers"])
        return [body]

    def control(self, path, start_response):
        _, _, kind, every = path.split("/")
        with self.lock:
            self.kind, self.every = kind, int(every)
            failed, self.failed = self.failed, 0
        body = str(failed).encode()
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    def fault(self, environ):
        with self.lock:
            if self.kind == "wrong" and (environ["REQUEST_METHOD"] != "GET" or "list-type" in environ["QUERY_STRING"]):
                return None
            if not self.every or self.chance.randrange(self.every):
                return None
            self.failed += 1
            return self.kind


class Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *_):
        pass

    log = log_request


def main():
    faulty = Faulty(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, faulty, threaded=True, request_handler=Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # Creates the bucket. The signature is invalid, but moto reads only the service name from it.
    signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"}
    bucket = urllib.request.Request(f"http://127.0.0.1:{server.port}/bucket", method="PUT", headers=signed)
    urllib.request.urlopen(bucket).read()
    print(server.port, flush=True)
    # Serves until the parent process closes standard input.
    sys.stdin.read()


main()

"""Served indexes that misbehave as a script tells them to, and a client with short patience."""

import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from taspo_trl.environments.search_qa.retrievers import HTTPRetriever


FORMATS = ["batch", "single"]


def hits_for(query):
    return [
        {"document": {"id": f"{query}-{rank}", "contents": f'"Title of {query}"\ntext {rank}'}, "score": 1.0 / rank}
        for rank in (1, 2, 3)
    ]


def send(handler, status, body, content_type="application/json", headers=()):
    data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    handler.send_response(status)
    handler.send_header("Content-Type", content_type)
    handler.send_header("Content-Length", str(len(data)))
    for name, value in headers:
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)


def ok(handler, queries):
    send(handler, 200, {"result": [hits_for(query) for query in queries]})


def status(code, body=b"<html>Service Unavailable</html>", headers=()):
    return lambda handler, queries: send(handler, code, body, "text/html", headers)


def body(value):
    return lambda handler, queries: send(handler, 200, value)


def html(handler, queries):
    send(handler, 200, b"<html><body>Please log in</body></html>", "text/html")


def fewer_lists(handler, queries):
    send(handler, 200, {"result": [hits_for(query) for query in queries][:-1]})


def hang(handler, queries):
    handler.server.released.wait(10)
    handler.close_connection = True


def hang_up(handler, queries):
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def drip(handler, data):
    for byte in data:
        if handler.server.released.wait(0.05):
            break
        handler.wfile.write(bytes([byte]))
        handler.wfile.flush()
    handler.close_connection = True


def drip_headers(handler, queries):
    drip(handler, b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 10_000)


def drip_body(handler, queries):
    handler.send_response(200)
    handler.send_header("Content-Length", "10000")
    handler.end_headers()
    drip(handler, b" " * 10_000)


def cut_short(handler, queries):
    handler.send_response(200)
    handler.send_header("Content-Length", "10000")
    handler.end_headers()
    handler.wfile.write(b'{"result": [')
    handler.close_connection = True


class FaultyServer(ThreadingHTTPServer):
    """Answers the n-th request with the n-th behaviour of a script, and all later ones with the last."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, script):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.requests = []
        self.connections = set()
        self.lock = threading.Lock()
        self.released = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/retrieve"

    def handle_error(self, request, client_address):
        pass  # clients that give up are part of the tests


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append(asked)
            self.server.connections.add(self.client_address)
            number = len(self.server.requests) - 1
            behave = self.server.script[min(number, len(self.server.script) - 1)]
        behave(self, asked["queries"] if "queries" in asked else [asked["query"]])

    def log_message(self, *_):
        pass


@contextmanager
def faulty(*script):
    server = FaultyServer(script)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()


def client(url, wire_format="batch", **settings):
    settings = {"timeout": 5.0, "max_attempts": 3, "deadline": 20.0, "backoff": 0.01, **settings}
    return HTTPRetriever(url, wire_format=wire_format, **settings)


def ids(hits):
    return [[passage.passage_id for passage in of_query] for of_query in hits]

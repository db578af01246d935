"""`taspo serve-retriever`: a passage index for Search-QA over HTTP."""

from __future__ import annotations

import argparse


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="taspo serve-retriever",
        description="Serve a passage index, one query or a batch ({'queries': [...], 'topk': 3}) a request.",
    )
    parser.add_argument(
        "--retriever",
        default="embedded",
        help="what to serve: 'embedded', an index folder, or a passage file (default: embedded)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=8000, help="port; 0 takes a free one (default: 8000)")
    options = parser.parse_args(arguments)

    from ..environments.search_qa.server import serve

    serve(
        options.retriever,
        host=options.host,
        port=options.port,
        on_ready=lambda address: print(f"Serving {options.retriever} at {address}", flush=True),
    )
    return 0

"""A local OpenAI-compatible endpoint in a process of its own, for the analyzer's benchmark.

python benchmarks/analyzer_endpoint.py 2.0          # answers as the embedded analyzer does, 2 s a call
python benchmarks/analyzer_endpoint.py small-model  # answers with SmolLM2-135M
"""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


SMALL_MODEL_TOKENS = 300


def extractive_answers(delay: float) -> Callable[[list[dict[str, str]]], str]:
    """The embedded analyzer, `delay` seconds a call."""
    from taspo_trl.analyzer.base import AnalyzerRequest
    from taspo_trl.analyzer.extractive import ExtractiveAnalyzer

    def answer(messages: list[dict[str, str]]) -> str:
        payload = json.loads(messages[1]["content"])
        stage: Any = "extraction" if "trajectories" in payload else "alignment"
        text = ExtractiveAnalyzer().complete(AnalyzerRequest(stage, "", payload)).text
        time.sleep(delay)
        return text

    return answer


def small_model_answers() -> Callable[[list[dict[str, str]]], str]:
    """SmolLM2-135M-Instruct, greedy."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from taspo_trl.quickstart.smollm2 import smollm2_folder

    folder = smollm2_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    turn = threading.Lock()

    def answer(messages: list[dict[str, str]]) -> str:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
        with turn, torch.no_grad():
            output = model.generate(ids, max_new_tokens=SMALL_MODEL_TOKENS, do_sample=False)
        return tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True)

    return answer


def token_counter() -> Callable[[str], int]:
    """Tokens of a text by the tokenizer that LiteLLM brings (cl100k), without a network."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    return lambda text: len(litellm.encode(model="", text=text))


def serve(how: str, counts: str = "characters") -> None:
    """Print the port, then answer until killed. Usage is a fourth of the characters, or counted in tokens."""
    count = token_counter() if counts == "tokens" else lambda text: len(text) // 4
    answer = small_model_answers() if how == "small-model" else extractive_answers(float(how))

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            messages = json.loads(body)["messages"]
            text = answer(messages)
            asked = body.decode() if counts == "characters" else "\n".join(one["content"] for one in messages)
            usage = {"prompt_tokens": count(asked), "completion_tokens": count(text)}
            message = {"role": "assistant", "content": text}
            data = json.dumps(
                {
                    "id": "x",
                    "object": "chat.completion",
                    "created": 1,
                    "model": "local",
                    "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                    "usage": {**usage, "total_tokens": sum(usage.values())},
                }
            ).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


@contextmanager
def endpoint(how: str, counts: str = "characters") -> Iterator[str]:
    """The address of an endpoint in another process."""
    process = subprocess.Popen([sys.executable, __file__, how, counts], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    serve(*sys.argv[1:])

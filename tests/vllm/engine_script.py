"""Run by the environment that has vLLM: VLLMColocateEngine on a real engine in this process; prints JSON."""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import Future


def main(model: str) -> None:
    from vllm import LLM

    from taspo_trl.errors import ServiceError
    from taspo_trl.generation import GenerationRequest, SamplingSettings
    from taspo_trl.generation.vllm_colocate import VLLMColocateEngine
    from taspo_trl.generation.vllm_llm import parameter_maker

    llm = LLM(
        model=model,
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=8,
        logprobs_mode="processed_logprobs",
        seed=0,
    )
    policy = VLLMColocateEngine(llm.llm_engine, make_parameters=parameter_maker(None), stop_token_ids=[2])
    prompts = [(1, 4093, 198, 19556 + k, 2, 198, 1, 520, 9531, 198) for k in range(6)]
    requests = [GenerationRequest(prompt, 6 + 6 * k, f"k{k}") for k, prompt in enumerate(prompts)]
    ends: list[int] = []

    def play(order: list[int]) -> list:
        policy.begin(SamplingSettings(), 7)
        futures: dict[int, Future] = {}
        for k in order:
            futures[k] = policy.submit(requests[k])
            futures[k].add_done_callback(lambda _, k=k: ends.append(k))
        return [futures[k].result(300) for k in range(len(requests))]

    first = play([0, 1, 2, 3, 4, 5])
    first_ends, ends[:] = list(ends), []
    second = play([5, 4, 3, 2, 1, 0])
    try:
        policy.submit(GenerationRequest((5,) * 600, 4, "long")).result(60)
        refusal = ""
    except ServiceError as error:
        refusal = str(error)
    abandoned = policy.submit(GenerationRequest(prompts[0], 400, "abandoned"))
    time.sleep(0.5)
    policy.abandon()
    is_idle = not llm.llm_engine.has_unfinished_requests()
    again = policy.submit(requests[0]).result(60)
    threads = sorted(one.name for one in threading.enumerate() if one.name.startswith("taspo"))
    policy.close()
    json.dump(
        {
            "first": [[list(one.reply_ids), list(one.logps), one.finish_reason] for one in first],
            "prompts": prompts,
            "is_reproducible": [a.reply_ids == b.reply_ids for a, b in zip(first, second, strict=True)],
            "order_of_ends": first_ends,
            "refusal": refusal,
            "is_cancelled": abandoned.cancelled(),
            "is_idle": is_idle,
            "again": len(again.reply_ids),
            "threads": threads,
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main(sys.argv[1])

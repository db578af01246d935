"""What analyzer tokens cost, from LiteLLM's price list. Unknown is unknown, never 0."""

from __future__ import annotations


def analyzer_cost(model: str, prompt_tokens: float | None, reply_tokens: float | None) -> float | None:
    """US dollars for so many tokens of `model`, without discounts for cached prompts.

    Returns:
        `float` or None: None when LiteLLM has no price for the model, or a number of tokens is not known.
    """
    if prompt_tokens is None or reply_tokens is None:
        return None
    from ...analyzer.llm.transport import litellm_module

    try:
        # A single call may be in another price tier than all of them together, so one token of each is priced.
        price_in, _ = litellm_module().cost_per_token(model=model, prompt_tokens=1_000, completion_tokens=0)
        _, price_out = litellm_module().cost_per_token(model=model, prompt_tokens=0, completion_tokens=1_000)
    except Exception:  # a plain Exception in some versions: the model is not in the list
        return None
    if not price_in or not price_out:
        return None
    return (prompt_tokens * price_in + reply_tokens * price_out) / 1_000

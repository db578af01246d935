"""Whether what a recipe depends on answers: the vLLM server, the retriever, the analyzer's endpoint.

Nothing here costs money, except the one tiny request to the analyzer that has to be asked for.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from ...errors import ConfigurationError, MissingDependencyError, TaspoError
from .findings import Finding, Status, one_line
from .network import get, is_listening, uses_proxy


_GROUP = "services"
_ASK = "`--ask-analyzer` sends one real request."


def server_url(training: Any) -> str:
    """The vLLM server's address in TRL's options."""
    from ...generation.build import server_url as address

    return address(training)


def vllm_findings(url: str, timeout: float, training: Any = None, model_name: str | None = None) -> list[Finding]:
    """A vLLM server: whether it answers, and whether it suits the recipe.

    Args:
        url (`str`):
            Root of the server.
        timeout (`float`):
            Seconds to wait for it.
        training ([`~taspo_trl.TASPOConfig`], *optional*):
            The recipe, with `use_vllm=True`.
        model_name (`str`, *optional*):
            What the recipe trains.
    """
    from ...generation.vllm_server import VLLMServer

    try:
        server = VLLMServer(url, timeout)
    except (ConfigurationError, MissingDependencyError) as error:
        return [Finding(_GROUP, "vLLM server", Status.FAILURE, one_line(error))]
    try:
        facts = server.check()
    except TaspoError as error:
        return [Finding(_GROUP, "vLLM server", Status.FAILURE, one_line(error, 600))]
    finally:
        server.close()
    detail = f"{server.url} serves {facts.model}, {facts.max_model_length} tokens"
    found = [Finding(_GROUP, "vLLM server", Status.OK, detail)]
    return found if training is None else found + _server_faults(training, facts, model_name)


def _server_faults(training: Any, facts: Any, model_name: str | None) -> list[Finding]:
    from ...generation.vllm_server import START_COMMAND

    found = []

    def fault(status: Status, detail: str, remedy: str) -> None:
        found.append(Finding(_GROUP, "vLLM server", status, detail, remedy))

    if not facts.has_weight_transfer:
        what = "has no development endpoints" if facts.instance is None else "was started without weight transfer"
        fault(Status.FAILURE, f"it {what}, so it takes no weights", f"Start it with `{START_COMMAND}`.")
    if training.vllm_importance_sampling_correction and facts.logprobs_mode not in (None, "processed_logprobs"):
        fault(
            Status.WARNING,
            f"it reports {facts.logprobs_mode!r}, not what it sampled from",
            "Add `--logprobs-mode processed_logprobs`.",
        )
    wanted = (training.max_prompt_length or 0) + training.max_completion_length
    if facts.max_model_length < wanted:
        limits = f"`max_prompt_length` + `max_completion_length` = {wanted}"
        if training.max_prompt_length is None:
            limits = f"`max_completion_length` = {wanted}"
        fault(
            Status.FAILURE,
            f"it takes {facts.max_model_length} tokens, but {limits}",
            f"Serve with `--max-model-len {wanted}`, or shorten prompts or replies.",
        )
    if model_name and not _is_same_model(model_name, facts):
        fault(
            Status.WARNING,
            f"it serves {facts.model!r}, the recipe trains {model_name!r}",
            "Weights of another architecture cannot be loaded; serve the model that is trained.",
        )
    return found


def _is_same_model(name: str, facts: Any) -> bool:
    known = {facts.model, facts.root} | {os.path.basename(str(one).rstrip("/")) for one in (facts.model, facts.root)}
    return name in known or os.path.basename(name.rstrip("/")) in known


def retriever_findings(arguments: Mapping[str, Any], timeout: float) -> list[Finding]:
    """The retriever of `search_qa`'s constructor arguments: one search at a served index, a look at anything else."""
    from ...environments.search_qa.retrievers.http import HTTPRetriever
    from ...environments.search_qa.retrievers.open import EMBEDDED, SINGLE_PREFIX, check_spec

    spec = arguments.get("retriever", EMBEDDED)
    try:
        check_spec(spec)
        address = str(spec).removeprefix(SINGLE_PREFIX)
        if not address.startswith(("http://", "https://")):
            return [Finding(_GROUP, "retriever", Status.OK, f"{spec}: in the process, no server needed")]
        client = HTTPRetriever(
            address,
            wire_format="single" if address != str(spec) else "batch",
            timeout=timeout,
            max_attempts=1,
            deadline=timeout + 1.0,
        )
    except (ConfigurationError, MissingDependencyError) as error:
        return [Finding(_GROUP, "retriever", Status.FAILURE, one_line(error))]
    started = time.perf_counter()
    topk = int(arguments.get("topk", 3))
    try:
        passages = client.search(["capital of France"], topk)[0]
    except TaspoError as error:
        remedy = "Start it: `taspo serve-retriever --retriever FOLDER`, or correct `environment_kwargs.retriever`."
        return [Finding(_GROUP, "retriever", Status.FAILURE, one_line(error), remedy)]
    finally:
        client.close()
    milliseconds = 1000 * (time.perf_counter() - started)
    if not passages:
        remedy = "Is the index empty? Ask it for something that it must hold."
        return [Finding(_GROUP, "retriever", Status.WARNING, f"{client!r} answered, with no passage", remedy)]
    return [
        Finding(_GROUP, "retriever", Status.OK, f"{client!r} gave {len(passages)} passages in {milliseconds:.0f} ms")
    ]


def analyzer_findings(model: str, api_base: str | None, timeout: float, ask: bool = False) -> list[Finding]:
    """An analyzer behind LiteLLM: its settings, its key, its host, and with `ask` one tiny request.

    Args:
        model (`str`), api_base (`str`, *optional*):
            As `analyzer_model` and `analyzer_api_base` of a recipe.
        timeout (`float`):
            Seconds for a connection, and for the request.
        ask (`bool`, *optional*, defaults to `False`):
            Whether to send a request, which costs a few hundred tokens.
    """
    from ...analyzer.llm.analyzer import LiteLLMAnalyzer

    try:
        analyzer = LiteLLMAnalyzer(
            model, api_base=api_base, timeout=timeout, attempts=1, max_output_tokens=64, cache=None, required=False
        )
    except TaspoError as error:
        return [Finding(_GROUP, "analyzer", Status.FAILURE, one_line(error))]
    try:
        found = [_key_finding(model, api_base), _host_finding(model, api_base, timeout)]
        if ask:
            found.append(_answer(analyzer))
    finally:
        analyzer.close()
    return found


def _key_finding(model: str, api_base: str | None) -> Finding:
    """Whether the provider's variable is set; its value is never looked at."""
    from ...analyzer.llm.providers import key_variable
    from ...analyzer.llm.transport import model_facts

    facts = model_facts(model, api_base)
    variable = key_variable(facts.provider if facts else "")
    if not variable:
        return Finding(_GROUP, "analyzer key", Status.OK, "none needed, or known to LiteLLM only")
    if os.environ.get(variable):
        return Finding(_GROUP, "analyzer key", Status.OK, f"{variable} is set")
    # Without an `analyzer_api_base` the constructor has refused already.
    remedy = f"Set {variable} if the endpoint wants a key."
    return Finding(_GROUP, "analyzer key", Status.WARNING, f"{variable} is not set; a placeholder is sent", remedy)


def _host_finding(model: str, api_base: str | None, timeout: float) -> Finding:
    if api_base is not None:
        return endpoint_finding(api_base, model, timeout)
    url = _provider_url(model)
    if url is None:
        return Finding(_GROUP, "analyzer host", Status.OK, f"the provider's own, which LiteLLM does not tell. {_ASK}")
    if uses_proxy(url):
        return Finding(_GROUP, "analyzer host", Status.OK, f"{url}, through a proxy: not tried. {_ASK}")
    if is_listening(url, timeout):
        return Finding(_GROUP, "analyzer host", Status.OK, f"{url} takes connections. {_ASK}")
    detail = f"{url} takes no connection within {timeout:g} s"
    return Finding(_GROUP, "analyzer host", Status.FAILURE, detail, f"Check address and network. {_ASK}")


def endpoint_finding(api_base: str, model: str | None, timeout: float) -> Finding:
    """Whether an OpenAI-style endpoint answers: one GET of its list of models, without a key and without cost."""
    url = f"{api_base.rstrip('/')}/models"
    answer = get(url, timeout)
    if answer.status == 0:
        remedy = "Start it, or correct `analyzer_api_base` (the API's root, for example http://localhost:8000/v1)."
        return Finding(_GROUP, "analyzer host", Status.FAILURE, f"{url}: {answer.text}", remedy)
    if answer.status in (401, 403):
        return Finding(_GROUP, "analyzer host", Status.OK, f"{url} wants a key, which was not sent. {_ASK}")
    if answer.status != 200:
        detail = f"{url} answers with status {answer.status}"
        return Finding(_GROUP, "analyzer host", Status.WARNING, detail, f"Is the path right? {_ASK}")
    names = _model_names(answer.text)
    if names is None:
        detail = f"{url} answers, but with no list of models"
        return Finding(_GROUP, "analyzer host", Status.FAILURE, detail, f"Is this an OpenAI-style API? {_ASK}")
    if model is not None and not any(model == name or model.endswith(f"/{name}") for name in names):
        detail = f"{url} answers, but serves {', '.join(names[:3]) or 'nothing'}; the recipe names {model!r}"
        return Finding(_GROUP, "analyzer host", Status.WARNING, detail, _ASK)
    return Finding(_GROUP, "analyzer host", Status.OK, f"{url} answers")


def _model_names(text: str) -> list[str] | None:
    """The ids in an answer to `/models`; None where it is no such answer."""
    try:
        return [str(one["id"]) for one in json.loads(text)["data"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _provider_url(model: str) -> str | None:
    from ...analyzer.llm.transport import litellm_module

    try:
        return litellm_module().get_llm_provider(model)[3]
    except Exception:  # LiteLLM raises what it likes; where it does not know, nothing is claimed
        return None


def _answer(analyzer: Any) -> Finding:
    from ...analyzer.base import AnalyzerRequest
    from ...analyzer.llm.failures import REMEDIES

    payload = {"task": "Say that you can be reached.", "trajectories": []}
    reply = analyzer.complete(AnalyzerRequest("extraction", 'Answer with the JSON object {"evidence": []}.', payload))
    if reply.error:
        detail = f"the request failed: {reply.error}"
        return Finding(_GROUP, "analyzer answer", Status.FAILURE, detail, REMEDIES.get(reply.error, ""))
    cost = "price unknown" if reply.cost_usd is None else f"{reply.cost_usd:.6f} USD"
    tokens = f"{reply.prompt_tokens} + {reply.completion_tokens} tokens"
    return Finding(_GROUP, "analyzer answer", Status.OK, f"answered in {reply.seconds:.1f} s: {tokens}, {cost}")

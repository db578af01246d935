"""A stand-in for the Hub: the few endpoints that pushing and loading a model use, and everything that was received."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml


TOKEN = "hf_CANARYtokenCANARYtoken7731"
USER = "somebody"
_REPO_ID = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?", re.ASCII)


@dataclass
class Repository:
    """One repository of the stand-in; each push replaces and adds files, as a commit does."""

    private: bool
    kind: str = "model"
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)
    """Messages, oldest first."""

    @property
    def sha(self) -> str:
        return hashlib.sha1("\n".join(self.commits).encode()).hexdigest()


class HubServer:
    """Serves until it is closed; a private repository wants [`TOKEN`].

    Args:
        with_lfs (`bool`, *optional*, defaults to `False`):
            Ask for weights through LFS; else everything comes inline.
    """

    def __init__(self, with_lfs: bool = False) -> None:
        self.with_lfs = with_lfs
        self.repositories: dict[str, Repository] = {}
        self.paths: list[str] = []
        """Method and path of every request."""
        self.unknown: list[str] = []
        """Requests that no endpoint here answers."""
        self._objects: dict[str, bytes] = {}
        self._received: list[bytes] = []
        self._lock = threading.RLock()
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                hub._serve(self)

            do_HEAD = do_POST = do_PUT = do_GET

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def received(self) -> Iterator[bytes]:
        """Every body that reached the server, files inside commits decoded."""
        yield from self._received
        for repository in self.repositories.values():
            yield from repository.files.values()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> HubServer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # ---- requests ---------------------------------------------------------------------------------------------------

    def _serve(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        body = _body(handler)
        url = urlsplit(handler.path)
        path = unquote(url.path)
        has_token = handler.headers.get("authorization") == f"Bearer {TOKEN}"
        with self._lock:
            self.paths.append(f"{handler.command} {path}")
            self._received.append(body)
            status, headers, content = self._answer(handler.command, path, parse_qs(url.query), body, has_token)
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        handler.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(data)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(data)

    def _answer(
        self, method: str, path: str, query: dict, body: bytes, has_token: bool
    ) -> tuple[int, dict[str, str], Any]:
        if path == "/api/whoami-v2":
            return (200, {}, {"name": USER, "type": "user", "orgs": []}) if has_token else (401, {}, {})
        if path == "/api/repos/create":
            return self._create(json.loads(body), has_token)
        if path == "/api/validate-yaml":
            faults = card_faults(json.loads(body)["content"])
            return (400 if faults else 200), {}, {"errors": [{"message": one} for one in faults], "warnings": []}
        if match := re.fullmatch(r"/lfs/(\w+)", path):
            self._objects[match[1]] = body
            return 200, {}, {}
        if match := re.fullmatch(r"/(?:datasets/)?([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            return self._lfs_batch(json.loads(body)) if has_token else (401, {}, {})
        if match := re.fullmatch(r"/api/(?:models|datasets)/([^/]+/[^/]+)/(preupload|commit)/[^/]+", path):
            if not has_token:
                return 401, {}, {}
            repository = self.repositories[match[1]]
            return self._preupload(body) if match[2] == "preupload" else self._commit(repository, match[1], body)
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            return self._resolve(self._visible(match[1], has_token), match[2])
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+?)(?:/(tree|revision)/[^/]+(?:/(.+))?)?", path):
            return self._describe(match[1], self._visible(match[1], has_token), match[2], match[3] or "")
        self.unknown.append(f"{method} {path}")
        return 404, {}, {"error": "not served here"}

    def _visible(self, repo_id: str, has_token: bool) -> Repository | None:
        repository = self.repositories.get(repo_id)
        return None if repository is None or (repository.private and not has_token) else repository

    def _create(self, said: dict, has_token: bool) -> tuple[int, dict, Any]:
        if not has_token:
            return 401, {}, {"error": "no token"}
        repo_id = f"{said['organization'] or USER}/{said['name']}"
        answer = {"url": f"{self.url}/{repo_id}", "name": repo_id}
        if repo_id in self.repositories:
            return 409, {}, answer
        is_private = said.get("visibility") == "private" or said.get("private") is True
        self.repositories[repo_id] = Repository(is_private, said.get("type", "model"))
        return 200, {}, answer

    def _preupload(self, body: bytes) -> tuple[int, dict, Any]:
        files = json.loads(body)["files"]
        self._received.extend(base64.b64decode(one["sample"]) for one in files)
        modes = [
            {
                "path": one["path"],
                "uploadMode": "lfs" if self.with_lfs and one["path"].endswith(_LARGE) else "regular",
                "shouldIgnore": False,
            }
            for one in files
        ]
        return 200, {}, {"files": modes}

    def _lfs_batch(self, said: dict) -> tuple[int, dict, Any]:
        objects = [{**one, "actions": {"upload": {"href": f"{self.url}/lfs/{one['oid']}"}}} for one in said["objects"]]
        return 200, {"content-type": "application/vnd.git-lfs+json"}, {"transfer": "basic", "objects": objects}

    def _commit(self, repository: Repository, repo_id: str, body: bytes) -> tuple[int, dict, Any]:
        for line in body.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "header":
                repository.commits.append(value["summary"])
            elif operation["key"] == "file":
                repository.files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                data = self._objects[value["oid"]]
                assert hashlib.sha256(data).hexdigest() == value["oid"], "what arrived is what was announced"
                repository.files[value["path"]] = data
            else:
                raise AssertionError(f"an operation that no push here needs: {operation['key']}")
        sha = repository.sha
        return 200, {}, {"success": True, "commitOid": sha, "commitUrl": f"{self.url}/{repo_id}/commit/{sha}"}

    def _resolve(self, repository: Repository | None, name: str) -> tuple[int, dict, Any]:
        if repository is None:
            return 401, {"X-Error-Code": "RepoNotFound"}, {"error": "Repository not found"}
        headers = {"X-Repo-Commit": repository.sha}
        if name not in repository.files:
            return 404, {**headers, "X-Error-Code": "EntryNotFound"}, {"error": "Entry not found"}
        data = repository.files[name]
        etag = hashlib.sha256(data).hexdigest()
        return 200, {**headers, "ETag": f'"{etag}"', "content-type": "application/octet-stream"}, data

    def _describe(
        self, repo_id: str, repository: Repository | None, part: str | None, folder: str
    ) -> tuple[int, dict, Any]:
        if repository is None:
            return 401, {"X-Error-Code": "RepoNotFound"}, {"error": "Repository not found"}
        names = [name for name in repository.files if name.startswith(folder)]
        if part == "tree":
            if not names:
                return 404, {"X-Error-Code": "EntryNotFound"}, {"error": "Entry not found"}
            entries = [
                {"type": "file", "path": name, "size": len(repository.files[name]), "oid": repository.sha}
                for name in names
            ]
            return 200, {}, entries
        siblings = [{"rfilename": name} for name in names]
        about = {"id": repo_id, "modelId": repo_id, "sha": repository.sha, "private": repository.private}
        return 200, {}, {**about, "siblings": siblings, "tags": []}


_LARGE = (".safetensors", ".bin", ".pt", ".pth", ".parquet")


def _body(handler: http.server.BaseHTTPRequestHandler) -> bytes:
    if handler.headers.get("transfer-encoding", "").lower() != "chunked":
        return handler.rfile.read(int(handler.headers.get("content-length", 0)))
    chunks = []
    while size := int(handler.rfile.readline().split(b";")[0], 16):
        chunks.append(handler.rfile.read(size))
        handler.rfile.readline()
    handler.rfile.readline()
    return b"".join(chunks)


def card_faults(text: str) -> list[str]:
    """What the Hub would refuse in the front matter of a card, by its documented rules."""
    match = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    if match is None:
        return ["no front matter"]
    data = yaml.safe_load(match[1])
    faults = [f"`{name}` is empty" for name, value in data.items() if value in (None, "None", "", [])]
    for name in ("base_model", "datasets"):
        values = data.get(name, [])
        for one in [values] if isinstance(values, str) else values:
            if not _REPO_ID.fullmatch(one):
                faults.append(f"`{name}`: {one!r} is not the name of a repository")
    if not re.fullmatch(r"[a-z0-9.-]+", data.get("license", "mit")):
        faults.append(f"`license`: {data['license']!r}")
    if not all(isinstance(tag, str) for tag in data.get("tags", [])):
        faults.append("`tags` are strings")
    for model in data.get("model-index", []):
        if not model.get("name"):
            faults.append("`model-index[].name` is missing")
        for result in model["results"]:
            if not result["task"].get("type"):
                faults.append("`task.type` is missing")
            if not _REPO_ID.fullmatch(result["dataset"].get("type") or "") or not result["dataset"].get("name"):
                faults.append(f"`dataset`: {result['dataset']}")
            for metric in result["metrics"]:
                if not metric.get("type") or metric.get("value") is None or metric["value"] != metric["value"]:
                    faults.append(f"`metrics`: {metric}")
    return faults

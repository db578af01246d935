"""Search by meaning: text vectors from a sentence encoder, nearest neighbours from a faiss index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from ....errors import ConfigurationError, MissingDependencyError
from ..passages import Passage
from .base import check_topk
from .folder import PASSAGES, open_passages, read_manifest, write_folder
from .store import PassageStore, write_corpus


KIND = "dense"

_INDEX_FILE = "index.faiss"


class TextEncoder(Protocol):
    """Turns texts into vectors whose inner product says how well they fit."""

    def encode(self, texts: Sequence[str], kind: Literal["query", "passage"]) -> np.ndarray:
        """Vectors of shape (len(texts), d), float32."""
        ...


@dataclass
class SentenceTransformerEncoder:
    """An encoder of the `sentence-transformers` library, loaded at first use.

    The defaults are those of E5, which the public indexes of Wikipedia are made with.

    Args:
        model (`str`, *optional*, defaults to `"intfloat/e5-base-v2"`):
            Name or path of the model.
        query_prefix (`str`, *optional*, defaults to `"query: "`):
            Put before every query.
        passage_prefix (`str`, *optional*, defaults to `"passage: "`):
            Put before every passage.
        max_length (`int`, *optional*, defaults to `256`):
            Tokens of a text that are read.
        device (`str`, *optional*):
            Where to encode, for example `"cuda"`; None leaves it to the library.
        batch_size (`int`, *optional*, defaults to `64`):
            Texts encoded at a time.
    """

    model: str = "intfloat/e5-base-v2"
    query_prefix: str = "query: "
    passage_prefix: str = "passage: "
    max_length: int = 256
    device: str | None = None
    batch_size: int = 64
    _model: Any = field(default=None, init=False, repr=False, compare=False)

    def settings(self) -> dict[str, Any]:
        """The arguments that make an equal encoder, the device aside."""
        # Not `asdict`, which would copy the model.
        return {item.name: getattr(self, item.name) for item in fields(self) if item.init and item.name != "device"}

    def encode(self, texts: Sequence[str], kind: Literal["query", "passage"]) -> np.ndarray:
        prefix = self.query_prefix if kind == "query" else self.passage_prefix
        vectors = self._load().encode(
            [prefix + text for text in texts],
            batch_size=self.batch_size,
            normalize_embeddings=True,
            convert_to_numpy=True,
            show_progress_bar=False,
        )
        return np.asarray(vectors, dtype=np.float32)

    def _load(self) -> Any:
        if self._model is None:
            try:
                from sentence_transformers import SentenceTransformer
            except ImportError as error:
                raise _missing("sentence-transformers") from error
            self._model = SentenceTransformer(self.model, device=self.device)
            self._model.max_seq_length = self.max_length
        return self._model


class DenseRetriever:
    """Nearest passages by inner product.

    Args:
        index (`Any`):
            A faiss index whose `n`-th vector belongs to the `n`-th passage.
        passages (`Sequence[Passage]`):
            The corpus.
        encoder (`TextEncoder`):
            What encodes the queries.
        folder (`Path`, *optional*):
            Where the index came from.
    """

    def __init__(self, index: Any, passages: Sequence[Passage], encoder: TextEncoder, folder: Path | None = None):
        if index.ntotal != len(passages):
            raise ConfigurationError(
                f"The index has {index.ntotal} vectors and the corpus {len(passages)} passages: they do not belong "
                "together."
            )
        self._index = index
        self._passages = passages
        self._encoder = encoder
        self._folder = folder

    def __repr__(self) -> str:
        return f"DenseRetriever({len(self._passages)} passages{f', {self._folder}' if self._folder else ''})"

    def __reduce__(self):
        if self._folder is None:
            raise ConfigurationError(
                "A dense index in memory cannot be sent to another process. Build it with a folder, which processes "
                "then share."
            )
        return DenseRetriever.load, (self._folder, self._encoder)

    def __len__(self) -> int:
        return len(self._passages)

    @classmethod
    def build(
        cls, passages: Sequence[Passage], folder: str | Path | None = None, encoder: TextEncoder | None = None
    ) -> DenseRetriever:
        """Encode and index passages; exact search.

        Args:
            passages (`Sequence[Passage]`):
                The corpus.
            folder (`str` or `Path`, *optional*):
                Where to keep the index; it is then mapped from there. None keeps it in memory.
            encoder (`TextEncoder`, *optional*):
                Defaults to a [`SentenceTransformerEncoder`].
        """
        faiss = _import_faiss()
        if not passages:
            raise ConfigurationError("There is no passage to index. Give a corpus with at least one.")
        encoder = encoder or SentenceTransformerEncoder()
        vectors = encoder.encode([passage.contents for passage in passages], "passage")  # (N, d)
        index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(np.ascontiguousarray(vectors, dtype=np.float32))
        if folder is None:
            return cls(index, passages, encoder)

        def fill(draft: Path) -> None:
            write_corpus(passages, draft / PASSAGES)
            faiss.write_index(index, str(draft / _INDEX_FILE))

        settings = encoder.settings() if isinstance(encoder, SentenceTransformerEncoder) else {}
        write_folder(Path(folder), KIND, {"encoder": settings}, fill)
        return cls.load(folder, encoder)

    @classmethod
    def load(cls, folder: str | Path, encoder: TextEncoder | None = None) -> DenseRetriever:
        """Open an index folder.

        Args:
            folder (`str` or `Path`):
                What [`~DenseRetriever.build`] made.
            encoder (`TextEncoder`, *optional*):
                Defaults to the sentence encoder that the index was built with; needed when that was another kind.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        if manifest["kind"] != KIND:
            raise ConfigurationError(f"{folder} is an index of kind {manifest['kind']!r}, not {KIND!r}.")
        settings = manifest["settings"]["encoder"]
        if encoder is None and not settings:
            raise ConfigurationError(f"{folder} was built with an encoder of your own. Pass it as `encoder`.")
        encoder = encoder or SentenceTransformerEncoder(**settings)
        return cls(_read_index(folder / _INDEX_FILE), open_passages(folder), encoder, folder)

    @classmethod
    def from_faiss(
        cls, index_file: str | Path, corpus_file: str | Path, encoder: TextEncoder | None = None
    ) -> DenseRetriever:
        """Open a public index: a faiss file and the plain JSON-lines corpus it was made from, in the same order.

        Args:
            index_file (`str` or `Path`):
                For example `e5_Flat.index`.
            corpus_file (`str` or `Path`):
                For example `wiki-18.jsonl`; read once to find its lines.
            encoder (`TextEncoder`, *optional*):
                What the index was made with. Defaults to a [`SentenceTransformerEncoder`].
        """
        return cls(
            _read_index(Path(index_file)), PassageStore(Path(corpus_file)), encoder or SentenceTransformerEncoder()
        )

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        check_topk(topk)
        if not queries:
            return []
        vectors = np.ascontiguousarray(self._encoder.encode(list(queries), "query"), dtype=np.float32)  # (Q, d)
        scores, positions = self._index.search(vectors, min(topk, len(self._passages)))
        return [
            # Approximate indexes fill up with -1 where they find less.
            [self._hit(position, score) for position, score in zip(found, values, strict=True) if position >= 0]
            for found, values in zip(positions.tolist(), scores.tolist(), strict=True)
        ]

    def close(self) -> None:
        """Nothing to do: memory and mapped files are freed with the object."""

    def _hit(self, position: int, score: float) -> Passage:
        passage = self._passages[position]
        return Passage(passage.passage_id, passage.title, passage.text, score)


def _read_index(path: Path) -> Any:
    faiss = _import_faiss()
    if not path.is_file():
        raise ConfigurationError(f"There is no faiss index {path}.")
    # Maps a flat index; other kinds are read into memory.
    return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)


def _import_faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise _missing("faiss-cpu") from error
    return faiss


def _missing(package: str) -> MissingDependencyError:
    return MissingDependencyError(f'Dense retrieval needs {package}: `pip install -e ".[search-dense]"` in the clone.')

"""Passage search behind one method: in this process (BM25, dense), or served through HTTP.

Optional packages are loaded by the class that needs them, when it is used.
"""

from .base import Retriever, RetrieverError
from .batching import BatchingRetriever
from .bm25 import BM25Retriever
from .dense import DenseRetriever, SentenceTransformerEncoder, TextEncoder
from .http import HTTPRetriever
from .open import open_retriever
from .store import read_corpus


__all__ = [
    "BM25Retriever",
    "BatchingRetriever",
    "DenseRetriever",
    "HTTPRetriever",
    "Retriever",
    "RetrieverError",
    "SentenceTransformerEncoder",
    "TextEncoder",
    "open_retriever",
    "read_corpus",
]

"""Dense retrieval: ranked by inner product, reloaded, opened from public files."""

import pickle

import pytest

from taspo_trl.environments.search_qa.retrievers import DenseRetriever, SentenceTransformerEncoder
from taspo_trl.environments.search_qa.retrievers.store import write_corpus
from taspo_trl.errors import ConfigurationError
from tests.environments.search_qa_helpers import PASSAGES, BagOfWords, ids


def test_dense_retrieval_ranks_by_inner_product_and_is_reloaded(tmp_path):
    pytest.importorskip("faiss")
    encoder = BagOfWords()
    built = DenseRetriever.build(PASSAGES, tmp_path / "index", encoder)
    queries = ["candles", "river herons"]
    hits = built.search(queries, 2)
    assert [of_query[0].passage_id for of_query in hits] == ["d", "c"]
    # "river herons" against passage c: river once, herons twice (title and text).
    assert hits[1][0].score == pytest.approx(3.0)
    assert encoder.kinds == ["passage", "query"]
    assert DenseRetriever.load(tmp_path / "index", encoder).search(queries, 2) == hits
    assert pickle.loads(pickle.dumps(built)).search(queries, 2) == hits
    assert DenseRetriever.build(PASSAGES, None, encoder).search(queries, 2) == hits
    assert built.search([], 2) == []
    assert len(built.search(["river"], 50)[0]) == 4


def test_a_public_faiss_index_is_opened_with_its_corpus(tmp_path):
    pytest.importorskip("faiss")
    encoder = BagOfWords()
    DenseRetriever.build(PASSAGES, tmp_path / "index", encoder)
    opened = DenseRetriever.from_faiss(
        tmp_path / "index" / "index.faiss", tmp_path / "index" / "passages.jsonl", encoder
    )
    assert ids(opened.search(["candles"], 1)) == [["d"]]
    write_corpus(PASSAGES[:2], tmp_path / "other.jsonl")
    with pytest.raises(ConfigurationError, match="4 vectors and the corpus 2 passages"):
        DenseRetriever.from_faiss(tmp_path / "index" / "index.faiss", tmp_path / "other.jsonl", encoder)


def test_an_index_of_an_own_encoder_asks_for_it_again(tmp_path):
    pytest.importorskip("faiss")
    DenseRetriever.build(PASSAGES, tmp_path / "index", BagOfWords())
    with pytest.raises(ConfigurationError, match="encoder of your own"):
        DenseRetriever.load(tmp_path / "index")


def test_a_sentence_encoder_is_remembered_by_its_settings_but_not_its_device():
    encoder = SentenceTransformerEncoder("some/model", query_prefix="q: ", device="cuda")
    assert SentenceTransformerEncoder(**encoder.settings()) == SentenceTransformerEncoder(
        "some/model", query_prefix="q: "
    )

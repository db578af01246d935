"""What several Search-QA tests search in, and with: a few passages, an encoder without a model."""

import re

import numpy as np

from taspo_trl.environments.search_qa.passages import Passage


PASSAGES = [
    Passage("a", "Curlew Bridge", "The bridge over the river was opened in 1801."),
    Passage("b", "José Rodríguez", "A painter from the north, “born” in 1850. 北京 is elsewhere."),
    Passage("c", "Herons", "Herons nest on the lower course of the river.\nThey eat eels."),
    Passage("d", "", "A passage without a title about candles."),
]


def ids(hits):
    return [[passage.passage_id for passage in of_query] for of_query in hits]


class BagOfWords:
    """An encoder that needs no model: one dimension for each word of the passages."""

    vocabulary = sorted({word for p in PASSAGES for word in re.findall(r"\w+", p.contents.lower())})

    def __init__(self):
        self.kinds = []

    def encode(self, texts, kind):
        self.kinds.append(kind)
        counts = [[re.findall(r"\w+", text.lower()).count(word) for word in self.vocabulary] for text in texts]
        return np.asarray(counts, dtype=np.float32)

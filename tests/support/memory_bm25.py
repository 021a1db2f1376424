"""BM25 written out from its definition, for comparison: every document, no index, no shortcuts."""

from __future__ import annotations

import math
from collections.abc import Sequence

K1, B = 1.2, 0.75


def bm25(documents: Sequence[Sequence[str]], query: Sequence[str]) -> list[float]:
    """A score for each document; lengths are relative to the mean of those that have any word of the query."""
    touched = [words for words in documents if set(words) & set(query)]
    if not touched:
        return [0.0] * len(documents)
    mean = sum(map(len, touched)) / len(touched)
    scores = []
    for words in documents:
        score = 0.0
        for word in set(query):
            holders = sum(word in other for other in documents)
            count = words.count(word)
            if count:
                rarity = math.log(1 + (len(documents) - holders + 0.5) / (holders + 0.5))
                score += rarity * count * (K1 + 1) / (count + K1 * (1 - B + B * len(words) / mean))
        scores.append(score)
    return scores

"""The prefix index: what is found, why not, and what goes first."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from stretto.engine.prefix import MOST_WORTH, PrefixIndex, PrefixNode, chain_digest, root_digest
from stretto.engine.sequence import CacheMiss

BLOCK = 4


def block(*ids: int) -> bytes:
    return np.array(ids, dtype=np.int32).tobytes()


class Index(PrefixIndex):
    """Adds and finds whole chains."""

    def __init__(self, most_remembered: int = 100) -> None:
        super().__init__(BLOCK, most_remembered)
        self._next = 0

    def chain(self, *blocks: bytes, turns: int = 1, extra_key: bytes = b"") -> list[PrefixNode]:
        """A chain with one user."""
        nodes: list[PrefixNode] = []
        digest = root_digest(extra_key)
        for tokens in blocks:
            digest = chain_digest(digest, tokens)
            parent = nodes[-1] if nodes else None
            node = self.find(parent, extra_key, digest, tokens)
            if node is None:
                node = self.add(parent, extra_key, digest, tokens, (self._next,), turns)
                self._next += 1
                assert node is not None
            else:
                self.pin(node)
            nodes.append(node)
        return nodes

    def rest(self, *blocks: bytes, turns: int = 1) -> list[PrefixNode]:
        """A chain that nobody uses."""
        nodes = self.chain(*blocks, turns=turns)
        self.unpin_all(nodes)
        return nodes

    def unpin_all(self, nodes: list[PrefixNode]) -> None:
        for node in reversed(nodes):
            self.unpin(node)

    def why(self, *blocks: bytes, extra_key: bytes = b"") -> CacheMiss | None:
        """What ``explain`` says of the first block that is not found."""
        parent, digest = None, root_digest(extra_key)
        for tokens in blocks:
            digest = chain_digest(digest, tokens)
            node = self.find(parent, extra_key, digest, tokens)
            if node is None:
                return self.explain(parent, extra_key, digest, tokens)
            parent = node
        raise AssertionError("all of it is known")


A, B, C, D = (block(n, n, n, n) for n in range(1, 5))


def test_digests_depend_on_all_that_came_before() -> None:
    one, two = root_digest(b""), root_digest(b"adapter")
    assert (
        len({one, two, chain_digest(one, A), chain_digest(two, A), chain_digest(chain_digest(one, B), A)})
        == 5
    )
    assert chain_digest(one, A).hex() == "701ce6da43c7270e334ea4d9f8fc81cb"  # the same in every process


def test_extra_keys_share_nothing() -> None:
    index = Index()
    index.rest(A, B)
    assert index.why(A, extra_key=b"adapter") == CacheMiss(0, "cold")
    index.unpin_all(index.chain(A, extra_key=b"adapter"))
    assert len(index) == 3
    index.evict(3)
    assert (len(index), index._roots) == (0, {})


def test_a_digest_alone_finds_nothing() -> None:
    index = Index()
    (node,) = index.chain(A)
    assert index.find(None, b"", node.digest, A) is node
    assert index.find(None, b"", node.digest, B) is None
    assert index.find(None, b"x", node.digest, A) is None
    assert index.find(node, b"", node.digest, A) is None
    assert index.add(None, b"", node.digest, B, (1,), 1) is None


def test_why_something_is_not_found() -> None:
    index = Index(most_remembered=2)
    assert index.why(A) == CacheMiss(0, "cold")
    nodes = index.rest(A, B)
    assert index.why(A, C) == CacheMiss(4, "diverged")
    assert index.why(A, block(2, 2, 9, 2)) == CacheMiss(6, "diverged")
    assert index.why(block(1, 1, 1, 9)) == CacheMiss(3, "diverged")
    assert index.why(D) == CacheMiss(0, "cold")
    assert index.why(A, B, C) is None  # known text ended there
    nodes[-1].tail = block(3, 3)
    assert index.why(A, B, C) == CacheMiss(10, "partial_block")
    assert index.why(A, B, block(3, 4, 5, 6)) == CacheMiss(9, "diverged")
    index.evict(1)
    assert index.why(A, B) == CacheMiss(4, "evicted")
    assert index.why(A, C) is None
    index.evict(1)
    assert index.why(A) == CacheMiss(0, "evicted")
    index.rest(C)
    index.rest(D)
    index.evict(2)
    assert index.why(A) == CacheMiss(0, "cold")  # only so many are remembered
    assert index.why(D) == CacheMiss(0, "evicted")


def test_leaves_go_first_and_nothing_in_use_goes() -> None:
    index = Index()
    used = index.chain(A, B)
    index.rest(A, B, C)
    index.rest(A, D)
    assert index.evictable == 2
    with pytest.raises(ValueError, match="3 blocks shall be evicted, 2 are unused"):
        index.evict(3)
    assert {node.tokens for node in index.evict(2)} == {C, D}
    assert index.evictable == 0
    index.unpin_all(used)
    assert [node.tokens for node in index.evict(2)] == [B, A]
    assert index.evictions == 4


def test_the_short_one_goes_before_the_long_one_even_if_it_is_newer() -> None:
    index = Index()
    long = index.rest(*(block(9, 9, 9, n) for n in range(20)))
    for number in range(4):
        short = index.rest(*(block(8, 8, number, n) for n in range(4)))
        assert index.evict(4) == short[::-1]
    assert index.evictable == len(long)


def test_a_long_one_that_nobody_needs_ages() -> None:
    index = Index()
    index.rest(*(block(9, 9, 9, n) for n in range(20)))
    evicted_shorts = 0
    for number in range(100):
        index.rest(block(8, 8, 8, number))
        if index.evict(1)[0].depth > 1:
            break
        evicted_shorts += 1
    assert evicted_shorts == 19


def test_a_continued_chain_outlives_a_longer_one_that_was_used_once() -> None:
    index = Index()
    main = index.rest(*(block(9, 9, 9, n) for n in range(10)), turns=3)
    index.rest(*(block(8, 8, 8, n) for n in range(20)))
    index.evict(20)
    assert index.evictable == len(main)
    assert not any(node.dropped for node in main)
    most = index.rest(A, turns=1000)
    assert most[0].priority == index.evictions + MOST_WORTH


def test_what_is_dropped_is_gone_for_all_but_its_users() -> None:
    index = Index()
    first = index.chain(A, B)
    index.rest(A, C)
    assert {node.tokens for node in index.drop(first[0])} == {A, B, C}
    assert (len(index), index.evictable) == (0, 0)
    assert index.drop(first[0]) == []
    assert index.add(first[-1], b"", chain_digest(first[-1].digest, D), D, (9,), 1) is None
    index.unpin_all(first)
    assert (len(index), index.evictable) == (0, 0)
    again = index.chain(A)
    assert again[0] is not first[0]


def test_the_order_of_eviction_against_a_plain_model() -> None:
    chance = random.Random(5)
    index = Index(most_remembered=10)
    held: list[list[PrefixNode]] = []
    for _ in range(600):
        move = chance.random()
        if move < 0.45:
            held.append(
                index.chain(
                    *(block(chance.randrange(3), 0, 0, depth) for depth in range(chance.randrange(1, 6)))
                )
            )
        elif move < 0.9 and held:
            index.unpin_all(held.pop(chance.randrange(len(held))))
        elif index.evictable:
            nodes = set(index._nodes.values())
            for gone in index.evict(chance.randrange(1, index.evictable + 1)):
                assert not gone.users
                assert not any(other.parent is gone for other in nodes)
                nodes.remove(gone)
            assert nodes == set(index._nodes.values())
        users = Counter(node for nodes in held for node in nodes)
        assert all(node.users == users[node] for node in index._nodes.values())
        assert index.evictable == sum(1 for node in index._nodes.values() if not node.users)
        assert len(index._evicted) <= 10

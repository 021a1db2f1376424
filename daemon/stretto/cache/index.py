"""The cache's keys in memory: exact matches by hash, neighbours by the cosine of unit vectors. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stretto.cache.rows import StoredKey

Float32Array = npt.NDArray[np.float32]

_FIRST_ROWS = 4


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cached question near to a new one."""

    id: int
    similarity: float


class _Group:
    """Vectors of the questions in one context: rows of one matrix, without gaps, in any order."""

    def __init__(self, dimensions: int) -> None:
        self.ids: list[int] = []
        self._matrix = np.empty((_FIRST_ROWS, dimensions), dtype=np.float32)

    def add(self, row_id: int, vector: Float32Array) -> None:
        count = len(self.ids)
        if count == len(self._matrix):
            self._matrix = np.concatenate([self._matrix, np.empty_like(self._matrix)])
        self._matrix[count] = vector
        self.ids.append(row_id)

    def remove(self, row_id: int) -> None:
        at, last = self.ids.index(row_id), len(self.ids) - 1
        self._matrix[at] = self._matrix[last]
        self.ids[at] = self.ids[last]
        self.ids.pop()

    def near(
        self, vector: Float32Array, threshold: float, allowed: Callable[[int], bool], limit: int
    ) -> list[Candidate]:
        similarities = self._matrix[: len(self.ids)] @ vector
        near = np.flatnonzero(similarities >= threshold)
        found: list[Candidate] = []
        for at in near[np.argsort(-similarities[near], kind="stable")]:
            if len(found) == limit:
                break
            if allowed(self.ids[at]):
                found.append(Candidate(self.ids[at], float(similarities[at])))
        return found

    @property
    def nbytes(self) -> int:
        return self._matrix.nbytes


class CacheIndex:
    """All keys, oldest first. Questions are neighbours only within one context.

    Args:
        dimensions: of the vectors; 0 when there are none.
    """

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self._rows: dict[int, StoredKey] = {}
        """Without their vectors, which the groups have."""
        self._semantic: set[int] = set()
        self._exact: dict[bytes, int] = {}
        self._groups: dict[bytes, _Group] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, key: StoredKey) -> None:
        """Add a row; it takes the place of the one with the same exact key."""
        before = self._exact.get(key.exact)
        if before is not None:
            self.remove(before)
        self._rows[key.id] = replace(key, vector=None)
        self._exact[key.exact] = key.id
        if key.vector is not None and len(key.vector) == 4 * self._dimensions:
            group = self._groups.setdefault(key.context, _Group(self._dimensions))
            group.add(key.id, np.frombuffer(key.vector, dtype="<f4"))
            self._semantic.add(key.id)

    def remove(self, row_id: int) -> None:
        """Remove a row; one that is not there makes no difference."""
        key = self._rows.pop(row_id, None)
        if key is None:
            return
        del self._exact[key.exact]
        if row_id in self._semantic:
            self._semantic.remove(row_id)
            group = self._groups[key.context]
            group.remove(row_id)
            if not group.ids:
                del self._groups[key.context]

    def exact(self, exact: bytes) -> StoredKey | None:
        """The row with this exact key."""
        row_id = self._exact.get(exact)
        return None if row_id is None else self._rows[row_id]

    def near(
        self,
        context: bytes,
        vector: Float32Array,
        *,
        threshold: float,
        allowed: Callable[[StoredKey], bool],
        limit: int,
    ) -> list[Candidate]:
        """Rows of a context whose question is at least ``threshold`` cosine-similar, nearest first.

        Args:
            vector: float32 [dimensions], of length 1.
            allowed: whether a row may be taken at all.
            limit: most rows to return.
        """
        group = self._groups.get(context)
        if group is None:
            return []
        return group.near(vector, threshold, lambda row_id: allowed(self._rows[row_id]), limit)

    def oldest(self, count: int) -> list[int]:
        """Ids of the ``count`` rows that were written first."""
        return [row_id for row_id, _ in zip(self._rows, range(count), strict=False)]

    def matching(self, wanted: Callable[[StoredKey], bool]) -> list[int]:
        """Ids of rows."""
        return [row_id for row_id, key in self._rows.items() if wanted(key)]

    def stats(self) -> dict[str, object]:
        """Sizes."""
        return {
            "entries": len(self._rows),
            "semantic_entries": len(self._semantic),
            "contexts": len(self._groups),
            "vector_bytes": sum(group.nbytes for group in self._groups.values()),
        }

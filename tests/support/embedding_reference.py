"""The reference for sentence vectors: transformers' BertModel, pooling and normalisation as sentence-transformers does them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt


def reference_vectors(
    directory: Path, sequences: Sequence[Sequence[int]], *, pooling: str = "mean"
) -> npt.NDArray[np.float64]:
    """Unit vectors of token sequences, computed in float64, padded and masked."""
    import torch
    from transformers import BertModel

    model = BertModel.from_pretrained(directory, attn_implementation="eager").double().eval()
    width = max(map(len, sequences))
    ids = torch.zeros(len(sequences), width, dtype=torch.long)
    mask = torch.zeros(len(sequences), width, dtype=torch.double)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(list(sequence))
        mask[row, : len(sequence)] = 1
    with torch.inference_mode():
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        mean = (hidden * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        pooled = mean if pooling == "mean" else hidden[:, 0]
        return torch.nn.functional.normalize(pooled, dim=1).numpy()

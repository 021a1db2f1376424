"""What mlx-lm itself makes of a checkpoint: converts it, and answers prompts with its own ``stream_generate``.

A program of its own, because the package imports PyTorch where it is installed and lowers the process's limit of open files:
``python mlx_reference.py JOB``, where JOB is a JSON file with ``checkpoint``, ``prompts`` (token ids), and ``variants``: each with
``directory`` to be written, ``bits`` (null for bfloat16), ``dtype`` to compute in (null for the file's) and ``new_tokens``. The answers, a
list of token ids for each prompt, go to ``answers.json`` in each directory.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(job: dict[str, Any]) -> None:
    """Do it."""
    import mlx.core as mx
    import mlx_lm

    for variant in job["variants"]:
        directory = Path(variant["directory"])
        packing = {} if variant["bits"] is None else {"q_bits": variant["bits"], "q_group_size": 64}
        mlx_lm.convert(
            job["checkpoint"],
            str(directory),
            quantize=variant["bits"] is not None,
            dtype="bfloat16",
            **packing,
        )
        model, tokenizer = mlx_lm.load(str(directory))
        if variant["dtype"] is not None:
            model.set_dtype(getattr(mx, variant["dtype"]))
        answers = [
            [
                step.token
                for step in mlx_lm.stream_generate(model, tokenizer, prompt, max_tokens=variant["new_tokens"])
            ]
            for prompt in job["prompts"]
        ]
        (directory / "answers.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))

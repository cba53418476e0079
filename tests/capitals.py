"""Whole jobs without a model: each text comes back in capitals."""

import json

from mtp_mlx.batch.files import Job
from mtp_mlx.batch.rows import Source


def capitals(texts):
    for number, text in texts:
        yield number, {"text": text.upper(), "tokens": 3, "rounds": 2, "accepted": 1}


def rows(path, n, *, bad=()):
    lines = ["{broken" if i in bad else json.dumps({"id": i, "text": f"text {i}"}) for i in range(n)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return Source(path, "jsonl")


def work(source, output, *, answer=capitals, **options):
    job = Job(source, output, about=options.pop("about", {"task": "proofread"}), **options)
    job.run(answer)
    return job.finish()

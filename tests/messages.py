"""Messages to work on in a batch, and the command over the tiny model that is quickest."""

import json

QUICK = ("--drafter", "lookup", "--max-tokens", "4", "--width", "2", "--draft-length", "1")


def rows(path, n):
    path.write_text("".join(json.dumps({"id": i, "text": f"hello wrld {i}"}) + "\n" for i in range(n)))
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def words(tiny, source, output):
    return ["batch", "proofread", str(source), str(output), "--backbone", str(tiny.path), *QUICK, "--no-timings"]

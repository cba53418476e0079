"""Batches: files in, files out, resumable; ``answers.run`` is the iterator beneath them."""

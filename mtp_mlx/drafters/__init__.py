"""Drafters: each proposes the next tokens of a text and is told what became of them."""

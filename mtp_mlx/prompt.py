"""From a user's text to token ids: control tokens in the text stay text."""

from __future__ import annotations

from dataclasses import dataclass

from mlx_lm.tokenizer_utils import TokenizerWrapper

from mtp_mlx.tasks import TEXT, Task

CHARACTERS = 64  # more for each token than any text has


class TextError(ValueError):
    """The text cannot be worked on; the message says what to do."""


@dataclass(frozen=True)
class Prompt:
    """Token ids of a task prompt: ``ids[:prefix]`` is the task's own, the same for every text."""

    ids: list[int]
    prefix: int
    text_tokens: int


def encode(tokenizer: TokenizerWrapper, task: Task, text: str) -> Prompt:
    """The chat template around the task's messages, with ``text`` put in as plain text.

    ``<|im_end|>`` and the like in ``text`` become the tokens of their letters, never control tokens.

    Raises:
        TextError: nothing to work on, no text, not Unicode, or too long for the task.
    """
    if not isinstance(text, str):
        raise TextError(f"the text is no text but {type(text).__name__}: give a string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TextError(f"the text is not Unicode (half a character at {error.start + 1}): type it again") from error
    if len(text) > CHARACTERS * task.max_text_tokens:  # told before they are all tokenised
        raise TextError(
            f"the text has {len(text):,} characters, too many for {task.title.lower()}: shorten or split it"
        )
    before, after = frame(tokenizer, task)
    ids = encode_text(tokenizer, text.strip())
    if not ids:
        raise TextError("the text is empty: write something first")
    if len(ids) > task.max_text_tokens:
        raise TextError(
            f"the text is {len(ids):,} tokens long and {task.max_text_tokens:,} are the most: shorten or split it"
        )
    return Prompt([*before, *ids, *after], len(before), len(ids))


def frame(tokenizer: TokenizerWrapper, task: Task) -> tuple[list[int], list[int]]:
    """The token ids around the text."""
    messages = [{"role": role, "content": content} for role, content in task.messages]
    try:
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template may raise anything
        raise TextError(f"the model's chat template fails ({error}): get its folder again") from error
    if rendered.count(TEXT) != 1:
        raise TextError("the model's chat template loses the message: get its folder again")
    before, after = rendered.split(TEXT)
    return (
        tokenizer.encode(before, add_special_tokens=False),
        tokenizer.encode(after, add_special_tokens=False),
    )


def encode_text(tokenizer: TokenizerWrapper, text: str) -> list[int]:
    """Ids of ``text`` with every control token spelt out.

    NUL and other control characters are kept; bytes that are not in the vocabulary (SmolLM2 lacks U+0004 and a few
    more, and all of the unassigned planes 4 to 11) are dropped.
    """
    return tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True, verbose=False)

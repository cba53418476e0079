"""What the form of the page says, by language; the trace's side has its own in ``browser/words*.js``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mtp_mlx.tasks import TASKS


@dataclass(frozen=True)
class Words:
    """``tasks``: title and hint of each. ``drafters``: title of each, and what it does."""

    intro: str
    watch: str
    learn: str
    task: str
    tasks: dict[str, tuple[str, str]]
    text: str
    run: str
    stop: str
    race: str
    examples: Callable[[str], str]
    drafter: str
    drafters: dict[str, tuple[str, str]]
    no_head: str
    draft_length: str
    draft_length_help: str
    auto: str
    auto_help: str
    profile: str
    profile_help: str
    this_machine: str


EN = Words(
    intro="""# A frozen model, writing in fewer passes

A language model writes one token in each pass. Here a small drafter guesses the next few, and a single pass of the
model checks them all: right guesses stay, and from the first wrong one on everything is thrown away. The text is the
model's own, token for token; only the number of passes changes.
""",
    watch="Watch",
    learn="Learn",
    task="Task",
    tasks={task.name: (task.title, f"{task.help[0].upper()}{task.help[1:]}.") for task in TASKS.values()},
    text="Text",
    run="Run",
    stop="Stop",
    race="Race against plain decode",
    examples=lambda task: f"Examples: {task.lower()}",
    drafter="Drafter",
    drafters={
        "mtp": ("MTP head", "The head reads the model's own state."),
        "auto": ("Head and lookup", "Head and lookup joined: the better guess goes."),
        "standalone": ("Standalone", "A standalone drafter is a second, small model."),
        "lookup": ("Prompt lookup", "Lookup copies from the text."),
        "plain": ("None (plain)", ""),
    },
    no_head="No trained MTP head was found, so prompt lookup guesses: it copies from the text.",
    draft_length="Draft length",
    draft_length_help="Tokens guessed for each pass.",
    auto="Draft length: auto",
    auto_help="As many guesses as pay on this machine, measured for a second at first.",
    profile="Device profile",
    profile_help="Keep to the memory that a phone sets apart for AI models; where no figure is published, a fifth of "
    "its RAM.",
    this_machine="This machine",
)

KO = Words(
    intro="""# 고정된 모델이 더 적은 패스로 씁니다

언어 모델은 패스 한 번에 토큰 하나를 씁니다. 여기서는 작은 드래프터가 다음 몇 토큰을 추측하고,
모델이 패스 한 번으로 모두 검증합니다. 맞은 추측은 남고, 처음 틀린 것부터는 모두 버립니다.
글은 토큰 하나까지 모델 자신의 것이며, 달라지는 것은 패스의 수뿐입니다.
""",
    watch="보기",
    learn="배우기",
    task="할 일",
    tasks={
        "proofread": ("교정", "고칠 메시지(영어)."),
        "summarize": ("알림 요약", "한 줄에 알림 하나, `앱이나 보낸 사람: 글`의 꼴로(영어)."),
    },
    text="글",
    run="실행",
    stop="중지",
    race="일반 디코딩과 경주",
    examples=lambda task: f"예시: {task}",
    drafter="드래프터",
    drafters={
        "mtp": ("MTP 헤드", "헤드는 모델의 상태를 읽습니다."),
        "auto": ("헤드와 룩업", "헤드와 룩업을 합쳐 더 나은 추측을 씁니다."),
        "standalone": ("독립 드래프터", "독립 드래프터는 또 하나의 작은 모델입니다."),
        "lookup": ("프롬프트 룩업", "룩업은 글에서 베낍니다."),
        "plain": ("없음 (일반)", ""),
    },
    no_head="학습된 MTP 헤드가 없어 프롬프트 룩업이 추측합니다. 글에서 베끼는 방식입니다.",
    draft_length="초안 길이",
    draft_length_help="패스마다 추측하는 토큰의 수.",
    auto="초안 길이: 자동",
    auto_help="이 기기에서 이득이 되는 만큼만 추측합니다. 처음에 1초쯤 잽니다.",
    profile="기기 프로필",
    profile_help="휴대전화가 AI 모델에 떼어 둔 메모리를 지킵니다. 공개된 수가 없으면 RAM의 5분의 1로 봅니다.",
    this_machine="이 기기",
)

LANGUAGES = {"en": EN, "ko": KO}

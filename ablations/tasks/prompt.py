"""How a question is put to a model. The template changes results as much as the objective does, so it is an option."""

from collections.abc import Sequence
from dataclasses import dataclass

from ablations.tasks.verify.extract import Extract


class Conversation(str):
    """A prompt as turns of a conversation, for the model's own chat template; as text, what people read.

    turns: (role, content) pairs.
    """

    turns: tuple[tuple[str, str], ...]

    def __new__(cls, *turns: tuple[str, str]) -> "Conversation":
        made = super().__new__(cls, "\n".join(f"{role}: {content}" for role, content in turns))
        made.turns = turns
        return made

    def __reduce__(self):
        return Conversation, self.turns


@dataclass(frozen=True)
class Prompt:
    """template: the text, in which {question} stands for the question in words, {problem} for its short form and {asks}
    for the sentence that says where the answer is expected. extract: where it is looked for. chat: whether the model's
    chat template goes around it, with `system` as the first turn if that is given, and `examples`, pairs of a question
    and its answer, as the turns after it.

    Raises ValueError for a template without a question, and for turns without a chat template.
    """

    template: str
    extract: Extract
    chat: bool
    system: str | None
    examples: Sequence[Sequence[str]] = ()

    def __post_init__(self) -> None:
        if "{question}" not in self.template and "{problem}" not in self.template:
            raise ValueError(
                f"task.prompt.template is {self.template!r} and names neither {{question}} nor {{problem}}; every "
                "prompt would be the same. Put one of them in."
            )
        object.__setattr__(self, "examples", tuple(map(tuple, self.examples)))
        if (self.system or self.examples) and not self.chat:
            raise ValueError(
                "task.prompt.system and examples are turns of a conversation; set task.prompt.chat=true, or leave "
                "them out and write what they say into the template."
            )
        if wrong := [pair for pair in self.examples if len(pair) != 2]:
            raise ValueError(f"task.prompt.examples has {wrong[0]}; an example is a pair [question, answer].")

    def pose(self, question: str, problem: str) -> str:
        """The prompt for one question. A text in braces inside the question stays as it is."""
        parts = {"{question}": question, "{problem}": problem, "{asks}": self.extract.asks}
        text, rest = "", self.template
        while rest:
            at, name = min(((rest.find(name), name) for name in parts if name in rest), default=(len(rest), ""))
            text += rest[:at] + (parts[name] if name else "")
            rest = rest[at + len(name) :]
        text = text.rstrip(" ") if self.chat else text
        if not self.chat:
            return text
        first = [("system", self.system)] if self.system else []
        shown = [turn for asked, answer in self.examples for turn in (("user", asked), ("assistant", answer))]
        return Conversation(*first, *shown, ("user", text))

    def signs(self, question: str) -> set[str]:
        """Every character that the template, the form of answers and a question's words bring along, for models with an
        alphabet."""
        asked = self.extract.asks if "{asks}" in self.template else ""
        words = question if "{question}" in self.template else ""
        return set(self.template.replace("{question}", "").replace("{problem}", "") + asked + self.extract.write(words))

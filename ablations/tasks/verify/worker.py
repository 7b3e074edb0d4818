"""One worker of the symbolic checker: reads questions from standard input, one JSON object a line, and answers them.

A process of its own, since hostile mathematics (9^9^9) cannot be stopped inside a thread and may take all memory. The
timer stops what Python can stop; the parent ends the process for what it cannot.
"""

import json
import logging
import resource
import signal
import sys
from typing import Any

MEMORY = 2 << 30  # bytes of address space; sympy and the parser need a quarter of it


class Late(BaseException):
    """The time of one question is over; no Exception, so that no library can swallow it."""


def parsed(text: str) -> list[Any]:
    """What math-verify reads in an answer; an empty list for what is no mathematics."""
    from math_verify import LatexExtractionConfig, parse

    # A box tells the parser where the answer is. Without it "2x+3=0" and "3x+5=0" are both read as 0.
    return parse("\\boxed{" + text + "}", [LatexExtractionConfig()], parsing_timeout=0)


def equal(gold: list[Any], answer: list[Any]) -> bool:
    """Whether both are the same mathematics: math-verify's judgement, and for numbers an exact one on top of it."""
    from math_verify import verify

    if not gold or not answer or not verify(gold, answer, timeout_seconds=0, raise_on_error=True):
        return False
    return _exactly(gold[0], answer[0])


def _exactly(gold: Any, answer: Any) -> bool:
    """math-verify rounds numbers to six digits, which makes 1/2^98 and 1/2^99 one; True for what is no number."""
    import sympy

    if not all(isinstance(each, sympy.Expr) and each.is_number for each in (gold, answer)):
        return True
    gold, answer = (sympy.nsimplify(each, rational=True) if each.has(sympy.Float) else each for each in (gold, answer))
    gap = sympy.simplify(gold - answer)
    if gap.is_zero is not None:
        return bool(gap.is_zero)
    return abs(gap.evalf(60)) <= abs(gold.evalf(60)) * sympy.Float("1e-40", 60)


def answered(question: dict[str, Any]) -> dict[str, Any]:
    """{"equal": bool}, {"read": bool} for a gold answer alone, {"late": true} or {"failed": reason}."""
    signal.setitimer(signal.ITIMER_REAL, question["limit"])
    try:
        gold = parsed(question["gold"])
        if question["answer"] is None:
            return {"read": bool(gold)}
        return {"equal": equal(gold, parsed(question["answer"]))}
    except Late:
        return {"late": True}
    except Exception as error:  # of a library that reads arbitrary text; it is reported, and the answer stays unscored
        return {"failed": f"{type(error).__name__}: {error}"[:300]}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _ring(*_: Any) -> None:
    raise Late


def main() -> None:
    """Say that all is loaded, then answer until the input ends."""
    replies = sys.stdout
    sys.stdout = sys.stderr  # whatever a library prints must not stand between the replies
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle
    signal.signal(signal.SIGALRM, _ring)
    parsed("1")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    replies.write("ready\n")
    replies.flush()
    for line in sys.stdin:
        replies.write(json.dumps(answered(json.loads(line))) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()

"""Whether an answer is right: read it out of the text by a named policy, then compare it with the gold answer.

extract   the policies, linear in the length of the text
number    the forms in which a plain number may be written
check     the two together, and what comes out: right, wrong, no answer, failed, timed out
symbolic  the same for mathematics, in worker processes with time limits
"""

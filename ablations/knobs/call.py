"""How the loop calls a knob: a function's own parameter names say which tensors it wants."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def needs(knob: Callable) -> tuple[str, ...]:
    """Names of the values that `knob` still asks for: its parameters without a default that no configuration has bound.

    Raises TypeError when the configuration binds a setting that the function does not have.
    """
    try:
        parameters = inspect.signature(knob).parameters.values()
    except ValueError:
        given = ", ".join(sorted(getattr(knob, "keywords", {})))
        function = getattr(knob, "func", knob)
        allowed = ", ".join(inspect.signature(function).parameters)
        raise TypeError(
            f"{function.__module__}.{function.__qualname__} was given {given}; it takes {allowed}. "
            "Correct the setting's name in the option's yaml or on the command line."
        ) from None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(p.name for p in parameters if p.default is inspect.Parameter.empty and p.kind in named)


def call(knob: Callable, values: Mapping[str, Any]) -> Any:
    """`knob(**those of values that it names)`. Raises TypeError, naming what is offered, if it wants something else."""
    wanted = needs(knob)
    if missing := [name for name in wanted if name not in values]:
        function = getattr(knob, "func", knob)
        raise TypeError(
            f"The knob {getattr(function, '__qualname__', type(function).__name__)} asks for "
            f"{', '.join(missing)}; here it can have "
            f"{', '.join(sorted(values))}. Rename the parameter, or bind it in the option's yaml."
        )
    return knob(**{name: values[name] for name in wanted})

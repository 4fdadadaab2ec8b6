"""Do these arguments fit that function? Asked at every enqueue, so that a wrong call fails where it is written.

The question is answered from sets made once; only a call that does not fit is bound, for Python's own words.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Arity:
    """What a function can be called with. Types are the type checker's business."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._name = name
        self._signature = inspect.signature(function)
        parameters = list(self._signature.parameters.values())
        positional = [one for one in parameters if one.kind in _POSITIONAL]
        keyword = [one for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]
        self._last = len(positional)
        self._open = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters)
        self._open_keywords = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
        #: By the number of positional arguments given: what must, what may, and what may not come by keyword.
        self._missing: list[frozenset[object]] = []
        self._allowed: list[frozenset[str]] = []
        self._taken: list[frozenset[str]] = []
        for given in range(self._last + 1):
            rest = [*positional[given:], *keyword]
            self._missing.append(frozenset(_wanted(one) for one in rest if one.default is inspect.Parameter.empty))
            self._allowed.append(
                frozenset(one.name for one in rest if one.kind is not inspect.Parameter.POSITIONAL_ONLY)
            )
            self._taken.append(
                frozenset(one.name for one in positional[:given] if one.kind is not inspect.Parameter.POSITIONAL_ONLY)
            )

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raises TypeError in Python's own words."""
        given = len(args)
        if given > self._last:
            if not self._open:
                self._refuse(args, kwargs)
            given = self._last
        if not kwargs:
            if self._missing[given]:
                self._refuse(args, kwargs)
            return
        names = kwargs.keys()
        fits = self._taken[given].isdisjoint(names) if self._open_keywords else names <= self._allowed[given]
        if not fits or not self._missing[given] <= names:
            self._refuse(args, kwargs)

    def _refuse(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            words = str(error)
            verb = "" if words.startswith(("missing", "too many")) else "got "
            raise TypeError(f"{self._name}() {verb}{words.removeprefix('got ')}") from None
        # Python 3.13's bind takes a keyword for a positional-only parameter where there is **kwargs; a call does not.
        raise TypeError(f"{self._name}() missing a required positional-only argument")


def _wanted(parameter: inspect.Parameter) -> object:
    """What satisfies a parameter: its name as a keyword; for one without keyword, nothing that could be among them."""
    return object() if parameter.kind is inspect.Parameter.POSITIONAL_ONLY else parameter.name

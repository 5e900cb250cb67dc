"""Stand-ins for `eval` and sympy's `parse_expr`, for text that a model wrote.

Several scorers of reasoning_gym evaluate the answer as Python, so that an answer such as
`__import__('os').system(…)` would run. These accept what an honest answer consists of (numbers, lists,
operators, elementary functions) and raise ValueError for the rest.
"""

import ast
import re
from collections.abc import Callable
from typing import Any

_LITERAL_NODES = (
    ast.Expression, ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Load,
    ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator,
)  # fmt: skip
_FUNCTIONS = frozenset(
    {
        *("sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot", "asec", "acsc"),
        *("sinh", "cosh", "tanh", "coth", "asinh", "acosh", "atanh", "exp", "log", "ln", "sqrt", "cbrt"),
        *("Abs", "sign", "floor", "ceiling", "Rational", "Integer", "Float", "pi", "oo"),
    }
)
_NAME = re.compile(r"[^\W\d]\w*")
_ATTRIBUTE = re.compile(r"\.\s*[^\W\d]|[\w)\]]\s*\.\s*[^\W\d]")


def eval_literal(text: str, *_: Any) -> Any:
    """The value of Python literals combined by operators; no names, calls or attributes.

    Raises ValueError or SyntaxError.
    """
    tree = ast.parse(text.strip(), mode="eval")
    for node in ast.walk(tree):
        if not isinstance(node, _LITERAL_NODES):
            raise ValueError(f"{type(node).__name__} is not part of a literal")
    return eval(compile(tree, "<answer>", "eval"), {"__builtins__": {}})  # noqa: S307 - checked above


def only_mathematics(parse_expr: Callable[..., Any]) -> Callable[..., Any]:
    """`parse_expr`, refusing text with names other than elementary functions and one-letter symbols.

    sympy splits and evaluates names as Python, so a refused name never reaches it.
    """

    def parse(text: str, *arguments: Any, **options: Any) -> Any:
        allowed = _FUNCTIONS.union(map(str, options.get("local_dict") or ()))
        unknown = [name for name in _NAME.findall(text) if len(name) > 1 and name not in allowed]
        if unknown or _ATTRIBUTE.search(text) or "'" in text or '"' in text:
            raise ValueError(f"not a mathematical expression: {text[:80]!r}")
        return parse_expr(text, *arguments, **options)

    return parse

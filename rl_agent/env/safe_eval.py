"""Replaces `eval` and sympy's `parse_expr` for text that a model wrote.

Several scorers of reasoning_gym evaluate the answer as Python, so an answer such as
`__import__('os').system(…)` would run. These functions accept numbers, lists, operators and elementary
functions, and raise ValueError for all else.
"""

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
}
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.BitAnd: operator.and_,
}
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
    """Evaluate Python literals combined by operators, without names, calls or attributes.

    Raises ValueError or SyntaxError.
    """
    return _value_of(ast.parse(text.strip(), mode="eval").body)


def _value_of(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value):
            return value
        case ast.List(items):
            return [_value_of(item) for item in items]
        case ast.Tuple(items):
            return tuple(_value_of(item) for item in items)
        case ast.UnaryOp(sign, operand) if type(sign) in _UNARY:
            return _UNARY[type(sign)](_value_of(operand))
        case ast.BinOp(left, sign, right) if type(sign) in _BINARY:
            return _BINARY[type(sign)](_value_of(left), _value_of(right))
    raise ValueError(f"{type(node).__name__} is not part of a literal")


def only_mathematics(parse_expr: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `parse_expr` to refuse names other than elementary functions and one-letter symbols.

    sympy splits and evaluates names as Python, so a refused name never reaches it.
    """

    def parse(text: str, *arguments: Any, **options: Any) -> Any:
        allowed = _FUNCTIONS.union(map(str, options.get("local_dict") or ()))
        unknown = [name for name in _NAME.findall(text) if len(name) > 1 and name not in allowed]
        if unknown or _ATTRIBUTE.search(text) or "'" in text or '"' in text:
            raise ValueError(f"not a mathematical expression: {text[:80]!r}")
        return parse_expr(text, *arguments, **options)

    return parse

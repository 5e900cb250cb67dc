"""Reads plain numbers and words from answers, and compares them; it evaluates nothing.

A plain number is written as one: `42`, `-1,234.50`, `2.5e6`, `2.5 \\times 10^6`, `50\\%`, `3/4`,
`1\\frac{1}{2}`, with a unit or a currency if need be. `12 + 30` is none, nor is `84/2`: they leave to the
reader what was asked. All of this takes time linear in the text.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

_LONGEST = 400
"""Digits of a number, and the largest exponent: longer ones take their time and are not answers."""
_TOLERANCE = Fraction(1, 10**6)

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
# A pattern each for what is written in several ways: signs, currencies, blanks, fractions, text, degrees.
_SIMPLER = [
    (re.compile(pattern), simpler)
    for pattern, simpler in (
        (r"[−－﹣–]", "-"),
        (r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda match: "^" + match[0].translate(_SUPERSCRIPTS)),
        (r"\\[$]|[$€£¥₹₽]", " "),
        (r"\\%", "%"),
        (r" ?\{ ?, ?\} ?", ","),
        (r"<<[^<>]*>>", " "),
        (r"\\!", ""),
        (r"\\[,;: ]|~|\\q?quad(?![a-z])|[\u00a0\u2009\u202f]", " "),
        (r"\\[dtc]frac(?![a-z])", r"\\frac"),
        (r"\\(?:left|right|displaystyle)(?![a-z])", ""),
        (r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf|it)|mbox|operatorname)\s*\{([^{}]*)\}", r" \1 "),
        (r"\^\s*\{?\s*\\circ\s*\}?|°|\\degree(?![a-z])", " degrees "),
        (r"\^\s*\{\s*(-?\d+)\s*\}", r"^\1"),
        (r"\\[()\[\]]|`|(?<![\d)])\*\*|\*\*(?![\d(])", " "),
    )
]

_SIMPLE = re.compile(r"[\w\s.,;:!?'\"()+=/%-]*", re.ASCII)
"""Texts in which no pattern finds anything: most answers."""

_GROUPED = r"[1-9]\d{0,2}(?:(?:[, '’]\d{3})+(?:\.\d+)?|(?:\.\d{3}){2,})"
_DIGITS = rf"(?:{_GROUPED}(?![.,]?\d)|\d+[.,]\d+|\.\d+|\d+)"
_NUMBER = re.compile(
    r"(?:(?:(?P<whole>\d+)\s*)?\\frac\s*(?:\{\s*(?P<top>-?\d+)\s*\}|(?P<top1>\d))\s*"
    r"(?:\{\s*(?P<bottom>\d+)\s*\}|(?P<bottom1>\d))"
    r"|(?:(?P<whole2>\d+)\s+)?(?P<top2>\d+)\s*/\s*(?P<bottom2>\d+)"
    rf"|(?P<digits>{_DIGITS})"
    r"(?:[eE](?P<e>[+-]?\d+)(?!\w)|\s*(?:\\times|\\cdot|[×·*])\s*10\s*\^\s*(?P<power>[+-]?\d+))?)"
    r"(?:\s*(?:(?P<percent>%|percent(?:age)?\b|pct\b)|(?P<scale>thousand|million|billion|trillion)\b))?"
)
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}

_WORD = r"(?:[A-Za-zµΩ]+(?:\s*\^\s*-?[23]|[23]|\.)?)"
_UNIT = re.compile(rf"(?:(?:/ ?(?=[A-Za-z]{{2}}))?{_WORD}(?:[ /·*'-]+{_WORD})*)?")
_LONGEST_UNIT = 80
_LETTER_UNITS = frozenset("mgslhdLAVWJNKCFTΩ")
_NO_UNIT = re.compile(
    r"pi|sin|cos|tan|log|ln|exp|sqrt|and|or|not|plus|minus|times|over|by|choose|mod|squared|cubed|factorial"
    r"|hundred|thousand|million|billion|trillion|dozen",
    re.IGNORECASE,
)
_EQUALS = re.compile(r"(?<![<>!:=\\])=(?!=)|≈|\\approx(?![a-z])")
_NAME = re.compile(r"\s*\\?[A-Za-z]+(?:_\{?\w+\}?)?(?:\(\w+\))?\s*")
_UNSURE = re.compile(r"(?<![\d,])[1-9]\d*,(?!\d{3}(?!\d))\d|\d[A-Za-z]\b")
"""A list of two numbers rather than a decimal comma, or a variable rather than a unit."""
_SEVERAL = re.compile(r",(?!\d{3})|;|\b(?:and|or)\b")

_ANCHOR = re.compile(r"answer\b[^.\n\d]{0,60}?(?:\bis\b|[:=])|####", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\n|\.(?:\s|$)")
_CONTEXT = 16
"""Characters beside a number that decide whether it stands alone."""
_BEFORE_OPERAND = re.compile(
    r"[+*/×·÷^_<>≤≥≠±]\s*$|\\(?!approx|implies|Rightarrow|therefore|end|to\b)[A-Za-z]+\s*$|\{\s*$"
    r"|!=\s*$|(?:n't|n’t|\b(?:not|than|plus|minus|times))(?:\s+(?:be\s+)?exactly)?\s*$"
    r"|[\dA-Za-z\u00c0-\u1fff]\Z|[\d)][.,:]\Z|\)\Z"
)
"""Signs, words and, right before a number, letters of scripts that have blanks between words."""
_AFTER_OPERAND = re.compile(
    r"(?!/ ?[A-Za-z]{2})\s*[+*/×·÷]\s*[\w(\\.-]|\s*-\s*[\d(\\]|\s*[\^<>≤≥≠±}]|_|\(|[:.,]\d|\s*!\s*[=+*/)-]|!="
    r"|\s*(?:x\s*\d|plus\b|minus\b|times\b)|\s*π|\s*\\(?!approx|implies|Rightarrow|therefore|end|to\b)[A-Za-z]"
)

_WORDS = re.compile(r"[^\W\d_]+(?:[ '’.-]+[^\W\d_]+)*")
_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}")
_CODE = re.compile(r"[A-Za-z]+\d[A-Za-z\d]*")
_AROUND_SIGNS = re.compile(r"\s*([^\w\s])\s*")
_CHOICE = re.compile(r"\(?([a-z])[).:](?:\s.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PlainNumber:
    """A number and how it is written."""

    value: Fraction
    is_percent: bool = False
    is_fraction: bool = False
    is_reduced: bool = True

    def is_right_for(self, expected: "PlainNumber") -> bool:
        """Return whether this answer has the value of the expected one, and is not a division left to do."""
        if not self.is_reduced and not expected.is_fraction:
            return False
        values, references = [self.value], [expected.value]
        if self.is_percent and not expected.is_percent:  # 50 % is 0.5, or 50 of a percentage
            values.append(self.value / 100)
        elif expected.is_percent and not self.is_percent:
            references.append(expected.value / 100)
        return any(_is_equal(value, other) for value in values for other in references)


def _is_equal(value: Fraction, other: Fraction) -> bool:
    if value.denominator == 1 or other.denominator == 1:
        return value == other
    return abs(value - other) <= _TOLERANCE * max(abs(value), abs(other))  # decimals are rounded


def plain_score(answer: str, request: Mapping[str, Any]) -> float | None:
    """Score an answer as `MathEnvironment.request` wants it; None where neither numbers nor words decide."""
    words, number = plain_reference(request["answer"])
    if words is not None:
        return float(says_words(words, answer, is_alone=request["is_boxed"] or request["is_tagged"]))
    if number is None:
        return None
    stated = whole_number(answer) or (None if request["is_boxed"] else stated_number(answer))
    is_right = stated is not None and stated.is_right_for(number)
    return float(is_right) if is_right or not request["expressions"] else None


@lru_cache(maxsize=4096)
def plain_reference(text: str) -> tuple[str | None, PlainNumber | None]:
    """Return the words, or else the number, that a reference answer is."""
    words = plain_words(text)
    return words, None if words is not None else expected_number(text)


def expected_number(reference: str) -> PlainNumber | None:
    """Return the number that a reference answer is; `x = 5` is one, `2x + 4y - 3 = 0` is an equation."""
    text = _simplified(reference)
    *before, _ = _EQUALS.split(text)
    if _UNSURE.search(text) or not all(_NAME.fullmatch(part) for part in before):
        return None
    return whole_number(reference)


def whole_number(text: str) -> PlainNumber | None:
    """Return the number that all of a text is, or that it ends in after an equals sign."""
    text = _simplified(text).strip().rstrip(".,;:").rstrip()
    *before, text = _EQUALS.split(text)
    if any(_SEVERAL.search(part) for part in before):
        return None
    text = text.strip()
    if text[:1] + text[-1:] in ("()", "{}") and "," not in text:
        text = text[1:-1].strip()
    sign = text[:1] if text[:1] in ("-", "+") else ""
    text = text[len(sign) :].lstrip()
    match = _NUMBER.match(text)
    if match is None or not _is_unit(text[match.end() :]):
        return None
    return _number_of(match, -1 if sign == "-" else 1)


def stated_number(text: str) -> PlainNumber | None:
    """Return the number that a text states: after its last "answer is", else the last that stands alone."""
    text = _simplified(text)
    begin = _after_anchor(text)
    if begin is not None:
        sentence = _first_sentence(text[begin:].lstrip(" :=\n"))
        numbers = list(_standing_alone(sentence))
        if numbers:
            return _number_of(*numbers[0 if numbers[0][0].start() <= 1 else -1])
    last = None
    for last in _standing_alone(text):  # noqa: B007 - the last one counts
        pass
    return _number_of(*last) if last else None


def _after_anchor(text: str) -> int | None:
    """Return where the last "answer is" of a text ends."""
    end = None
    for match in _ANCHOR.finditer(text):
        end = match.end()
    return end


def plain_words(text: str) -> str | None:
    """Return words, a date or a code like `b2b4` in a form that compares; None if the text is none."""
    words = _bare(text)
    return words if any(form.fullmatch(words) for form in (_WORDS, _DATE, _CODE)) else None


def says_words(expected: str, text: str, *, is_alone: bool) -> bool:
    """Return whether an answer is the expected words."""
    return any(_is_words(expected, _bare(part)) for part in _answers(text, is_alone=is_alone))


def says_same(expected: str, text: str, *, is_alone: bool) -> bool:
    """Return whether an answer is written as the expected one, but for blanks."""
    written = _written(expected)
    return any(_written(part) == written for part in _answers(text, is_alone=is_alone))


def _answers(text: str, *, is_alone: bool) -> list[str]:
    """Return the parts of a text that may be its answer: all, the last line, what follows "answer is"."""
    if is_alone:
        return [text]
    parts = [text, *text.strip().splitlines()[-1:]]
    if (begin := _after_anchor(text)) is not None:
        parts += [text[begin:], _first_sentence(text[begin:].lstrip())]
    return parts


def _first_sentence(text: str) -> str:
    end = _SENTENCE_END.search(text)
    return text[: end.start() if end else None]


def _written(text: str) -> str:
    return _AROUND_SIGNS.sub(r"\1", " ".join(_simplified(text).split())).strip(" .,;:")


def _is_words(expected: str, words: str) -> bool:
    choice = _CHOICE.fullmatch(words) if len(expected) == 1 else None
    return expected == (choice[1] if choice else words)


def _bare(text: str) -> str:
    words = " ".join(_simplified(text).split()).casefold()
    if re.match(r"\([a-z]\)\s", words):
        return words
    return words.strip(" .,;:!?'\"()[]{}“”‘’*")


def _simplified(text: str) -> str:
    if _SIMPLE.fullmatch(text):
        return text
    for pattern, simpler in _SIMPLER:
        text = pattern.sub(simpler, text)
    return text


def _number_of(match: re.Match[str], sign: int) -> PlainNumber | None:
    if match.end() - match.start() > _LONGEST:
        return None
    top = match["top"] or match["top1"] or match["top2"]
    if top:
        whole = int(match["whole"] or match["whole2"] or 0)
        bottom = int(match["bottom"] or match["bottom1"] or match["bottom2"])
        if bottom == 0:
            return None
        part = Fraction(int(top), bottom)
        is_reduced = bottom > 1 and part.denominator == bottom
        return PlainNumber(sign * (whole + part), bool(match["percent"]), True, is_reduced)
    exponent = int(match["e"] or match["power"] or 0)
    if abs(exponent) > _LONGEST:
        return None
    mantissa = Fraction(_as_decimal(match["digits"]))
    if match["power"] and not 1 <= mantissa < 10:  # 25 × 10^2 is a product
        return None
    value = sign * mantissa * _SCALES.get(match["scale"] or "", 1)
    if exponent:
        value *= Fraction(10) ** exponent
    return PlainNumber(value, bool(match["percent"]))


def _as_decimal(digits: str) -> str:
    if re.fullmatch(_GROUPED, digits):
        separators = "." if digits.count(".") > 1 else ", '’"
        return "".join(character for character in digits if character not in separators)
    return digits.replace(",", ".")


def _is_unit(text: str) -> bool:
    text = text.strip()
    if len(text) > _LONGEST_UNIT or not _UNIT.fullmatch(text):
        return False
    words = re.findall(r"[A-Za-zµΩ]+", text)
    return not any(
        _NO_UNIT.fullmatch(word) or (len(word) == 1 and word not in _LETTER_UNITS) for word in words
    )


def _standing_alone(text: str) -> Iterator[tuple[re.Match[str], int]]:
    """Iterate over the numbers that are no part of an expression, each with its sign."""
    for match in _NUMBER.finditer(text):
        start, end = match.span()
        before, after = text[max(0, start - _CONTEXT) : start], text[end : end + _CONTEXT]
        sign = _sign_before(before)
        is_tuple = "," in match[0] and before.endswith(("(", "["))
        if sign is not None and not is_tuple and _ends_alone(after):
            yield match, sign


def _sign_before(before: str) -> int | None:
    """Return the sign that a number has by the text before it; None where that makes it an operand."""
    head = before.rstrip(" ")
    if head[-1:] not in ("-", "+") or not head:
        return None if _BEFORE_OPERAND.search(before) else 1
    sign, is_apart, head = (-1 if head[-1] == "-" else 1), len(head) < len(before), head[:-1].rstrip(" ")
    if not head or head[-1] == "\n":
        return 1 if is_apart else sign  # a bullet
    if head[-1] in "=:([{,\"'" or (not is_apart and re.search(r"\b[A-Za-z]{2,}$", head)):
        return sign
    return None


def _ends_alone(after: str) -> bool:
    if _AFTER_OPERAND.match(after):
        return False
    letters = re.match(r"[A-Za-z]+", after)
    return letters is None or len(letters[0]) > 1 or letters[0] in _LETTER_UNITS
